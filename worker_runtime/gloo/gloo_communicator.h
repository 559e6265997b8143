// Collectives over TCP between any nodes, by Gloo.
#ifndef CADRE_WORKER_RUNTIME_GLOO_GLOO_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_GLOO_GLOO_COMMUNICATOR_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/worker.h"

namespace cadre {

constexpr size_t kMaxCommunicatorName = 100;

// Connects every rank of the world with every other one, over the address that the worker's node
// has for the others. All ranks call it the same number of times with the same name; `worker` must
// outlive the call, not the communicator. The operations' errors, besides Communicator's own:
//   UNAVAILABLE        a connection closed; says whose
//   DEADLINE_EXCEEDED  options.timeout passed; says which rank did not answer
//   INVALID_ARGUMENT   see collective_check.h
// Ranks that make different calls (another operation, type, count or root) run into the deadline
// rather than into each other's data.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(Worker& worker,
                                                          const CommunicatorOptions& options);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_GLOO_GLOO_COMMUNICATOR_H_
