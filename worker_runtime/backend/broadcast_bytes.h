// One rank's bytes on every rank.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_BROADCAST_BYTES_H_
#define CADRE_WORKER_RUNTIME_BACKEND_BROADCAST_BYTES_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "cadre/communicator.h"
#include "cadre/result.h"

namespace cadre::backend {

// Collective: `bytes` of rank `root`, of which the others need not know the number. In pieces, each
// of which has `timeout`. DATA_LOSS: there are more than `most`.
Result<std::string> BroadcastBytes(Communicator& communicator, std::string bytes, int root,
                                   int64_t most, std::chrono::nanoseconds timeout);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_BROADCAST_BYTES_H_
