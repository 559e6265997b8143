// What a worker says to its launcher with its exit status; any other but 0 is a failure.
#ifndef CADRE_EXIT_CODES_H_
#define CADRE_EXIT_CODES_H_

namespace cadre {

// Never start me again: the job ends.
inline constexpr int kWorkerExitNeverRestart = 93;
// I was asked for a checkpoint (checkpoint.h) and have saved it: begin the next generation, with
// the nodes that wait. It costs no restart. Unasked it is a failure like any other.
inline constexpr int kWorkerExitForNextGeneration = 94;

}  // namespace cadre

#endif  // CADRE_EXIT_CODES_H_
