// Collectives over TCP between any nodes, by Gloo.
#ifndef CADRE_WORKER_RUNTIME_GLOO_GLOO_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_GLOO_GLOO_COMMUNICATOR_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/worker.h"

namespace cadre::gloo {

constexpr size_t kMaxCommunicatorName = 100;

// Connects every rank of the world with every other one, over the address that the worker's node
// has for the others. All ranks call it the same number of times with the same name; `worker` must
// outlive the call, not the communicator. The operations' errors, besides Communicator's own:
//   UNAVAILABLE        a rank is gone; says which
//   ABORTED            a rank aborted or destroyed its communicator before this call; says which
//   DEADLINE_EXCEEDED  options.timeout passed; says which ranks did not come, or do not answer
//   INVALID_ARGUMENT   see collective_check.h; or the ranks made different calls (another
//                      operation, type, count or root): says who called what, within a second
// All ranks get the same code and name the same rank.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(Worker& worker,
                                                          const CommunicatorOptions& options);

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_GLOO_COMMUNICATOR_H_
