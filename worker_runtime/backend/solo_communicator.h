// The communicator of a world of one rank: nothing to send, but the same checks.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_SOLO_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_BACKEND_SOLO_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"

namespace cadre::backend {

// Operations are done when the call returns.
std::unique_ptr<Communicator> MakeSoloCommunicator();

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_SOLO_COMMUNICATOR_H_
