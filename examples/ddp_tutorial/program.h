// Common to the four programs: being a worker, and saying in one line what went wrong.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/worker.h"

namespace cadre {

// For every exchange between ranks.
inline constexpr absl::Duration kTimeout = absl::Minutes(1);

// Connects this worker with its agent and with the other ranks, calls `body`, and gives main()'s
// result.
int RunAsWorker(const char* program,
                const std::function<absl::Status(Worker&, Communicator&)>& body);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_
