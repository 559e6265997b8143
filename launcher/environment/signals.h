// The signals that end a launcher, server or agent (SIGINT, SIGTERM, SIGHUP, SIGQUIT): they are
// blocked, because the process reads them from a descriptor, and unblocked for a blocking wait that
// comes before anything reads them.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_SIGNALS_H_
#define CADRE_LAUNCHER_ENVIRONMENT_SIGNALS_H_

#include <signal.h>

#include <set>

namespace cadre::launcher {

// Blocks these signals and unblocks all others, also those that its parent had blocked. SIGHUP is
// not blocked if it is ignored, as under `nohup`, because a blocked signal stays pending even if it
// is ignored.
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

// Makes a blocking wait interruptible: while it lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT have
// their default effect on this process; pending ones at once. No thread may be started meanwhile:
// it would inherit the unblocked signals and receive them later in place of their reader.
class Interruptible {
 public:
  Interruptible() {
    sigset_t ending;
    sigemptyset(&ending);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
    pthread_sigmask(SIG_UNBLOCK, &ending, &before_);
  }
  ~Interruptible() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  sigset_t before_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_SIGNALS_H_
