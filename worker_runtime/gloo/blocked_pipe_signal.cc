#include "worker_runtime/gloo/blocked_pipe_signal.h"

#include <pthread.h>
#include <time.h>

namespace cadre::gloo {
namespace {

sigset_t OnlyPipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  return signals;
}

}  // namespace

BlockedPipeSignal::BlockedPipeSignal() {
  const sigset_t pipe = OnlyPipe();
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

BlockedPipeSignal::~BlockedPipeSignal() {
  if (sigismember(&before_, SIGPIPE) == 1) return;
  // What was raised meanwhile waits, and would be delivered now.
  const sigset_t pipe = OnlyPipe();
  const timespec at_once = {0, 0};
  while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace cadre::gloo
