// Connects libtorch's autograd with a Reducer: what DataParallel is made of.
#ifndef CADRE_WORKER_RUNTIME_TORCH_GRADIENT_HOOKS_H_
#define CADRE_WORKER_RUNTIME_TORCH_GRADIENT_HOOKS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "torch/csrc/autograd/function.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/reducer.h"

namespace cadre::nn {

struct DataParallelOptions {
  ReducerOptions reducer;
  // Rank 0's buffers (running averages of batch normalization and the like) replace those of the
  // other ranks before each synchronized forward pass, and at construction.
  bool broadcast_buffers = true;
  // For the exchange at the end of each backward pass, and of buffers; as ReducerOptions::timeout.
  absl::Duration timeout = absl::Minutes(11);
};

// One thread at a time, except for what autograd calls itself. Nothing here throws into autograd:
// what goes wrong is returned by the next Finish().
class GradientHooks {
 public:
  // Collective; errors as Reducer::Create().
  static absl::StatusOr<std::unique_ptr<GradientHooks>> Create(
      std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
      DataParallelOptions options);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Before a forward pass. Does nothing in evaluation mode and where gradients are off, so that one
  // rank may evaluate alone.
  void BeforeForward();
  // After backward(): what it came to.
  absl::StatusOr<StepReport> Finish();
  // In place of forward(), backward() and Finish(), for a rank that has no more samples.
  absl::StatusOr<StepReport> StepWithoutData();
  // Forgets the gradients.
  void ZeroGrad();
  // FAILED_PRECONDITION: no gradients were reduced since the last call.
  absl::Status BeforeOptimizerStep();
  // Of the step that the next forward pass begins, and of those after it.
  void set_weight(double weight) { weight_ = weight; }
  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronize() const { return synchronize_; }
  const Reducer& reducer() const { return *reducer_; }
  Communicator& communicator() { return communicator_; }

 private:
  class ReadyHook;

  GradientHooks(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                DataParallelOptions options);

  void Install();
  enum class Step { kNone, kLocal, kSynchronized };

  absl::Status Prepare(double weight);
  absl::Status CheckHooksAlive() const;
  absl::Status CheckNotBypassed();
  void PointAtBuckets();
  void OnReady(size_t i);
  void OnBackwardEnd();
  void StageMissing();
  void FinishSynchronized();
  void PublishUsed(const StepReport& report);
  bool LivesInBucket(size_t i) const;
  void Record(absl::Status status);

  const std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  const DataParallelOptions options_;
  std::vector<torch::Tensor> tensors_;
  std::unique_ptr<Reducer> reducer_;
  // Gradient i as a tensor over its place in the reducer's bucket.
  std::vector<torch::Tensor> views_;
  uint64_t layout_ = 0;
  // Kept alive here, because autograd itself keeps only weak references; with the key of our hook.
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> accumulators_;

  bool synchronize_ = true;
  double weight_ = 1;
  // The step that the last forward pass began.
  Step step_ = Step::kNone;
  // Whether gradients were computed since the last reduction, without one.
  bool only_local_ = false;
  // Of the first elements of all parameters, before the last forward pass.
  uint64_t sample_ = 0;
  int64_t optimized_steps_ = 0;
  std::atomic<bool> end_queued_{false};

  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::optional<StepReport> report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_GRADIENT_HOOKS_H_
