// Exit statuses with a meaning for the launcher; any other but 0 is a failure.
#ifndef CADRE_EXIT_CODES_H_
#define CADRE_EXIT_CODES_H_

namespace cadre {

// The job must end: the launcher does not restart this worker.
inline constexpr int kWorkerExitNeverRestart = 93;
// The worker was asked for a checkpoint (checkpoint.h) and has saved it: the next generation
// begins, with the nodes that wait, and no restart is counted. If no checkpoint was asked for, this
// is a failure like any other.
inline constexpr int kWorkerExitForNextGeneration = 94;

}  // namespace cadre

#endif  // CADRE_EXIT_CODES_H_
