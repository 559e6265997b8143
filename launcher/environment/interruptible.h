// Waits that come before anything reads the signals by which a launcher, server or agent ends.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_INTERRUPTIBLE_H_
#define CADRE_LAUNCHER_ENVIRONMENT_INTERRUPTIBLE_H_

#include <signal.h>

namespace cadre::launcher {

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT do to this process what they do to any; those
// that came before, at once. No thread is to be started meanwhile: it would take the signals, for
// ever, past whoever reads them.
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

#endif  // CADRE_LAUNCHER_ENVIRONMENT_INTERRUPTIBLE_H_
