// What a worker may say with its exit status. (Cadre's own statuses: launcher/flags/command.h.)
#ifndef CADRE_BASE_EXIT_CODES_H_
#define CADRE_BASE_EXIT_CODES_H_

namespace cadre {

// Never start me again.
inline constexpr int kExitNeverRestart = 93;
// I was asked for a checkpoint and have saved it: begin the next generation, with the nodes that
// wait. It costs no restart. Unasked it is a failure like any other.
inline constexpr int kExitForNextGeneration = 94;

}  // namespace cadre

#endif  // CADRE_BASE_EXIT_CODES_H_
