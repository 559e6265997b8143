// Collectives over TCP between any nodes.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_SOCKET_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_SOCKET_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::sockets {

// Connects every rank of the world with every other one, over the address that the worker's node
// has for the others; who connects proves that it belongs to this generation. All ranks call it the
// same number of times with the same name; `worker` must outlive the call, not the communicator.
// The operations' errors, besides Communicator's own:
//   UNAVAILABLE        a rank is gone; says which
//   ABORTED            a rank aborted or destroyed its communicator before this call; says which
//   DEADLINE_EXCEEDED  options.timeout passed; says which ranks did not come, or do not answer
//   INVALID_ARGUMENT   see collective_check.h; or the ranks made different calls (another
//                      operation, type, count or root): says who called what, within a second
// All ranks get the same code and name the same rank.
Result<std::unique_ptr<Communicator>> ConnectSockets(Worker& worker,
                                                     const CommunicatorOptions& options);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_SOCKET_COMMUNICATOR_H_
