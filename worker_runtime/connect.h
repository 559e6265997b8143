// The communicator that suits where the workers are.
#ifndef CADRE_WORKER_RUNTIME_CONNECT_H_
#define CADRE_WORKER_RUNTIME_CONNECT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/worker.h"

namespace cadre {

// Between CPU memory of all ranks of the world: shared memory on one node; on several, shared
// memory within each and sockets between one rank of each. CADRE_CPU_BACKEND=shared_memory or
// sockets in the environment asks for that one instead; INVALID_ARGUMENT: it says something else.
// All ranks call it the same number of times with the same name; `worker` must outlive the call,
// not the communicator.
absl::StatusOr<std::unique_ptr<Communicator>> Connect(Worker& worker,
                                                      const CommunicatorOptions& options);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_CONNECT_H_
