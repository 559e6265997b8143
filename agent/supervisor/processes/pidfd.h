// pidfd system calls; glibc 2.36 declares them without C linkage. Any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_PIDFD_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_PIDFD_H_

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace cadre::supervisor {

// Always O_CLOEXEC. Returns -1 and sets errno on failure.
inline int OpenPidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

inline int SignalPidfd(int pidfd, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_PIDFD_H_
