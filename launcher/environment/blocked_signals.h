// The signals that a launcher, server or agent takes from a descriptor.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_BLOCKED_SIGNALS_H_
#define CADRE_LAUNCHER_ENVIRONMENT_BLOCKED_SIGNALS_H_

#include <signal.h>

#include <set>

namespace cadre::launcher {

// Blocks these and no others, also of those that its parent had blocked. SIGHUP is left ignored
// where it is, as `nohup` has it: a blocked signal is kept even if it is ignored.
inline void BlockOnly(const std::set<int>& signals) {
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : signals) {
    if (signal != SIGHUP || hangup.sa_handler != SIG_IGN) sigaddset(&blocked, signal);
  }
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_BLOCKED_SIGNALS_H_
