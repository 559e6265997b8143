// What the programs share: they run as a worker and print an error in one line.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_

#include <chrono>
#include <functional>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

// The timeout of every exchange between ranks.
inline constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);

// Returns main()'s result, after printing an error to standard error.
int ExitStatus(const char* program, const Status& status);

// Connects this worker with its agent and with the other ranks, calls `body`, and returns main()'s
// result.
int RunAsWorker(const char* program, const std::function<Status(Worker&, Communicator&)>& body);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_PROGRAM_H_
