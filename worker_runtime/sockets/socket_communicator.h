// Collectives over TCP between any nodes.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_SOCKET_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_SOCKET_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::sockets {

// Connects every rank of the world with every other one, over the address of the worker's node.
// Each connection is authenticated as one of this generation. All ranks must call this equally
// often with the same name. `worker` must outlive the call, but not the communicator. Operations
// fail with these errors, besides Communicator's own:
//   UNAVAILABLE        a rank is gone; names it
//   ABORTED            a rank aborted or destroyed its communicator before this call; names it
//   DEADLINE_EXCEEDED  options.timeout passed; names ranks that did not come or do not answer
//   INVALID_ARGUMENT   see collective_check.h; or the ranks made different calls (another
//                      operation, type, count or root): names ranks and calls, within a second
// All ranks get the same code and name the same rank.
Result<std::unique_ptr<Communicator>> ConnectSockets(Worker& worker,
                                                     const CommunicatorOptions& options);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_SOCKET_COMMUNICATOR_H_
