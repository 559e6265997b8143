// Common to the programs: being a worker, and saying in one line what went wrong.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_

#include <chrono>
#include <functional>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

// For every exchange between ranks.
inline constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);

// main()'s result; says on standard error what went wrong.
int ExitStatus(const char* program, const Status& status);

// Connects this worker with its agent and with the other ranks, calls `body`, and gives main()'s
// result.
int RunAsWorker(const char* program, const std::function<Status(Worker&, Communicator&)>& body);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_
