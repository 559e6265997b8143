// Scales the loss so that small gradients do not vanish in float16, and skips steps whose gradients
// overflowed, on all ranks together. It uses the numbers of PyTorch's torch.amp.GradScaler, and
// works with sharded gradients, like ShardedGradScaler of FairScale and PyTorch's FSDP.
//
//   CADRE_ASSIGN_OR_RETURN(auto scaler, cadre::nn::ShardedGradScaler::Create(communicator));
//   ... loss under Autocast (autocast.h)
//   scaler->Scale(loss).backward();
//   CADRE_RETURN_IF_ERROR(model->Finish().status());
//   CADRE_RETURN_IF_ERROR(scaler->Step(*optimizer).status());   // in place of optimizer->Step()
//   CADRE_RETURN_IF_ERROR(scaler->Update());
//
// With DataParallel and ShardedDataParallel set ReducerOptions::non_finite to kIgnore: with kError
// an overflow would fail the training, and with kSkip the scale would not be reduced.
// DistributedOptimizer is given the scaler once (UseScaler()) and makes these calls itself.
// bfloat16 has float32's range and needs no scale. In hybrid sharding pass the communicator of all
// ranks, not one replica's.
#ifndef CADRE_TORCH_SHARDED_GRAD_SCALER_H_
#define CADRE_TORCH_SHARDED_GRAD_SCALER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::nn {

template <typename Module>
class FullySharded;
class ShardedOptimizer;

// The same on all ranks.
struct GradScalerOptions {
  double init_scale = 65536;
  // The factor, more than 1, by which the scale grows after growth_interval updates in a row
  // without an overflow.
  double growth_factor = 2;
  int64_t growth_interval = 2000;
  // The factor, between 0 and 1, by which the scale changes after a step that overflowed.
  double backoff_factor = 0.5;
  // If false, losses and gradients are unchanged and every step is made, so that one program can
  // train in all types.
  bool enabled = true;
  // Limits each collective. Longer than the communicator's own timeout, whose error names the
  // missing rank.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
};

// Used by one thread. The communicator must outlive it. Unscale() and Step() are collective and
// called after Finish(): all ranks call them in the same order for the same optimizers. They wait
// for devices. An error in one of them aborts the communicator and is returned by every later call
// of them.
class ShardedGradScaler {
 public:
  // INVALID_ARGUMENT: an option is out of its range.
  static Result<std::unique_ptr<ShardedGradScaler>> Create(Communicator& communicator,
                                                           GradScalerOptions options = {});
  ShardedGradScaler(const ShardedGradScaler&) = delete;
  ShardedGradScaler& operator=(const ShardedGradScaler&) = delete;

  // Returns the loss times the scale, in the loss's type. A float16 loss overflows with the scale:
  // compute it in float32, as losses are under Autocast.
  torch::Tensor Scale(const torch::Tensor& loss);

  // Divides this rank's gradients by the scale, so that they can be inspected or clipped
  // (ClipGradNorm()), and finds out whether those of all ranks are finite. Step() does it if it was
  // not done. The optimizer of a FullySharded is the one over its shards().
  //   FAILED_PRECONDITION, naming the rank and what to do: this was done, or Step() was, since the
  //     last Update(); no rank has a gradient, or none has scaled a loss; the ranks' scales differ
  Status Unscale(torch::optim::Optimizer& optimizer);
  Status Unscale(ShardedOptimizer& optimizer);

  // Steps, unless some rank's gradient is not finite, in which case no rank steps. Returns whether
  // it stepped. Errors are those of Unscale() and of the optimizer's step.
  Result<bool> Step(torch::optim::Optimizer& optimizer);
  Result<bool> Step(ShardedOptimizer& optimizer);
  template <typename Module>
  Result<bool> Step(FullySharded<Module>& model, torch::optim::Optimizer& optimizer) {
    return StepBy(
        optimizer, [&] { return model.Step(optimizer); }, [&] { return model.SkipStep(); });
  }

  // Call at the end of the iteration, after the last Step(): reduces the scale if a step was
  // skipped, and increases it after growth_interval updates without one. The second form sets the
  // scale to `new_scale`, more than 0.
  //   FAILED_PRECONDITION  there was no Step() or Unscale() since the last one
  //   INVALID_ARGUMENT     new_scale is not more than 0
  //   OUT_OF_RANGE         the scale fell to 0, since gradients were finite at no scale
  Status Update();
  Status Update(double new_scale);

  // 1 where it is not enabled.
  double scale() const { return options_.enabled ? scale_ : 1; }
  // The number of updates in a row without an overflow, below growth_interval.
  int64_t growth_tracker() const { return growth_tracker_; }
  bool enabled() const { return options_.enabled; }
  // Whether the optimizer's gradients were found to be non-finite since the last Update().
  bool found_non_finite(const torch::optim::Optimizer& optimizer) const;

  // Call after Update(). Uses the names of state_dict() in PyTorch; the state is the same on all
  // ranks, so one rank saves it. Writes nothing if not enabled.
  void SaveState(torch::serialize::OutputArchive& archive) const;
  // Not collective; any number of ranks may load, all the same state. INVALID_ARGUMENT, naming the
  // entry: it is missing or has an invalid value; the current state is then unchanged.
  Status LoadState(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  // An optimizer's progress since the last Update().
  struct Iteration {
    Stage stage = Stage::kReady;
    bool found = false;
  };

  ShardedGradScaler(Communicator& communicator, GradScalerOptions options);

  Status UnscaleReady(torch::optim::Optimizer& optimizer, Iteration& iteration);
  // Combines what this rank found with the other ranks' findings.
  Status Agree(bool has_gradients, bool* found);
  // Calls `skip` instead of `step` if the step is skipped.
  Result<bool> StepBy(torch::optim::Optimizer& optimizer, const std::function<Status()>& step,
                      const std::function<Status()>& skip);
  void EndIteration();
  std::string Mine() const;
  Status Fail(const Status& status);

  Communicator& communicator_;
  GradScalerOptions options_;
  // Kept in float32, as in PyTorch.
  float scale_;
  int64_t growth_tracker_ = 0;
  // Whether a loss was scaled since the last Update().
  bool scaled_ = false;
  std::map<const torch::optim::Optimizer*, Iteration> iterations_;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_GRAD_SCALER_H_
