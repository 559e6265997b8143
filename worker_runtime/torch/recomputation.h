// How code whose hooks run in a backward pass copes with Checkpointed, which runs parts of the
// forward pass again, and backward passes within the backward pass.
// Implemented in data_parallel.cc.
#ifndef CADRE_WORKER_RUNTIME_TORCH_RECOMPUTATION_H_
#define CADRE_WORKER_RUNTIME_TORCH_RECOMPUTATION_H_

#include <functional>
#include <memory>

#include "c10/util/ThreadLocalDebugInfo.h"

namespace cadre::nn {

// Calls `callback` at the end of the outermost backward pass; called from a hook of autograd's
// within it. The engine's own queue_callback() refers to the innermost pass.
void AtBackwardEnd(std::function<void()> callback);

// Whether the calling thread is rerunning a part of the forward pass.
bool IsRecomputing();

// While it lives, IsRecomputing() is true.
class Recomputing {
 public:
  Recomputing();
  ~Recomputing();
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;
};

// While it lives, backward passes that the calling thread starts count as parts of the one that it
// is in.
class InnerBackward {
 public:
  InnerBackward();
  InnerBackward(const InnerBackward&) = delete;
  InnerBackward& operator=(const InnerBackward&) = delete;

  // Call when the inner pass has succeeded: its callbacks are handed to the outer one.
  void End();

 private:
  friend void AtBackwardEnd(std::function<void()> callback);
  class Callbacks;

  const std::shared_ptr<Callbacks> callbacks_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_RECOMPUTATION_H_
