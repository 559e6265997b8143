// Exit statuses: those of `cadre` beside its workers' own, and what a worker may say with its.
// The numbers are those of sysexits.h, timeout(1) and the shell.
#ifndef CADRE_BASE_EXIT_CODES_H_
#define CADRE_BASE_EXIT_CODES_H_

#include <sys/wait.h>

namespace cadre {

inline constexpr int kExitUsage = 64;
inline constexpr int kExitBadSpec = 65;
inline constexpr int kExitUnavailable = 69;
inline constexpr int kExitInternal = 70;
inline constexpr int kExitTryLater = 75;
inline constexpr int kExitTimedOut = 124;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
// And the signal's number.
inline constexpr int kExitSignalBase = 128;

// By a worker: never start me again.
inline constexpr int kExitNeverRestart = 93;
// By a worker: I was asked for a checkpoint and have saved it: begin the next generation, with the
// nodes that wait. It costs no restart. Unasked it is a failure like any other.
inline constexpr int kExitForNextGeneration = 94;

// Of a status that waitpid gave for a process that has ended.
inline int ExitStatusOfWait(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
                                : kExitSignalBase + WTERMSIG(wait_status);
}

}  // namespace cadre

#endif  // CADRE_BASE_EXIT_CODES_H_
