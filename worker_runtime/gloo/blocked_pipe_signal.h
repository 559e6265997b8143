// Gloo writes to sockets whose peer may be gone, and a library must not change what signals mean to
// the program it is in.
#ifndef CADRE_WORKER_RUNTIME_GLOO_BLOCKED_PIPE_SIGNAL_H_
#define CADRE_WORKER_RUNTIME_GLOO_BLOCKED_PIPE_SIGNAL_H_

#include <signal.h>

namespace cadre::gloo {

// While this lives, writing to a closed socket raises no SIGPIPE in this thread, nor in those that
// it starts. Created and destroyed by the same thread.
class BlockedPipeSignal {
 public:
  BlockedPipeSignal();
  ~BlockedPipeSignal();
  BlockedPipeSignal(const BlockedPipeSignal&) = delete;
  BlockedPipeSignal& operator=(const BlockedPipeSignal&) = delete;

 private:
  sigset_t before_;
};

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_BLOCKED_PIPE_SIGNAL_H_
