// Exit statuses of `cadre` other than those of its workers, and those with which a worker asks for
// something.
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
// The signal's number is added to it.
inline constexpr int kExitSignalBase = 128;

// A worker exits with it to say that the job must never be restarted.
inline constexpr int kExitNeverRestart = 93;
// A worker exits with it after it was asked for a checkpoint and has saved one: the next generation
// begins, with the nodes that wait to join. It costs no restart. A worker that was not asked has
// failed.
inline constexpr int kExitForNextGeneration = 94;

// `wait_status` is what waitpid returned for a process that has ended.
inline int ExitStatusOfWait(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
                                : kExitSignalBase + WTERMSIG(wait_status);
}

}  // namespace cadre

#endif  // CADRE_BASE_EXIT_CODES_H_
