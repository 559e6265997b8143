// What Checkpointed does to a backward pass, for those whose hooks run in it: parts of the forward
// pass run again, and backward passes within the backward pass.
#ifndef CADRE_TORCH_RECOMPUTATION_H_
#define CADRE_TORCH_RECOMPUTATION_H_

#include <functional>
#include <memory>

#include "c10/util/ThreadLocalDebugInfo.h"

namespace cadre::nn {

// `callback` at the end of the whole backward pass, of which a hook of autograd's calls this. The
// engine's own queue_callback() is of the innermost pass.
void AtBackwardEnd(std::function<void()> callback);

// Whether the calling thread runs a part of the forward pass again.
bool IsRecomputing();

// While it lives, IsRecomputing().
class Recomputing {
 public:
  Recomputing();
  ~Recomputing();
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;
};

// While it lives, the backward passes that the calling thread begins are parts of the one that it
// is in.
class InnerBackward {
 public:
  InnerBackward();
  InnerBackward(const InnerBackward&) = delete;
  InnerBackward& operator=(const InnerBackward&) = delete;

  // The inner pass went well: what is to follow is handed to the outer one.
  void End();

 private:
  friend void AtBackwardEnd(std::function<void()> callback);
  class Callbacks;

  const std::shared_ptr<Callbacks> callbacks_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_RECOMPUTATION_H_
