// Scales the loss so that small gradients do not vanish in float16, and leaves steps out whose
// gradients overflowed, on all ranks together: PyTorch's torch.amp.GradScaler, whose numbers these
// are, as ShardedGradScaler of FairScale and PyTorch's FSDP does it over ranks that have parts of
// the gradients each.
//
//   CADRE_ASSIGN_OR_RETURN(auto scaler, cadre::nn::ShardedGradScaler::Create(communicator));
//   ... loss under Autocast (autocast.h)
//   scaler->Scale(loss).backward();
//   CADRE_RETURN_IF_ERROR(model->Finish().status());
//   CADRE_RETURN_IF_ERROR(scaler->Step(*optimizer).status());   // in place of optimizer->Step()
//   CADRE_RETURN_IF_ERROR(scaler->Update());
//
// DataParallel and ShardedDataParallel take it with ReducerOptions::non_finite set to kIgnore: with
// kError an overflow is the end, and with kSkip the scale would not fall for it.
// DistributedOptimizer is given it once (UseScaler()) and makes these calls itself. bfloat16 has
// float32's range and needs no scale. In hybrid sharding the communicator is that of all ranks, not
// one replica's.
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
  // The scale is multiplied by it after so many updates in a row without an overflow; more than 1.
  double growth_factor = 2;
  int64_t growth_interval = 2000;
  // And by this after a step that overflowed; between 0 and 1.
  double backoff_factor = 0.5;
  // Without it losses and gradients stay as they are and every step is made, so that one program
  // trains in all types.
  bool enabled = true;
  // For each collective. Longer than the communicator's own timeout, whose error names the rank
  // that did not come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
};

// One thread. The communicator must outlive it. Unscale() and Step() are collective, after
// Finish(): all ranks call them in the same order for the same optimizers. They wait for devices.
// An error of one of them aborts the communicator, and every later call of them returns it.
class ShardedGradScaler {
 public:
  // INVALID_ARGUMENT: an option is out of its range.
  static Result<std::unique_ptr<ShardedGradScaler>> Create(Communicator& communicator,
                                                           GradScalerOptions options = {});
  ShardedGradScaler(const ShardedGradScaler&) = delete;
  ShardedGradScaler& operator=(const ShardedGradScaler&) = delete;

  // The loss, in its own type, times the scale. One in float16 overflows with the scale: compute it
  // in float32, as losses are under Autocast.
  torch::Tensor Scale(const torch::Tensor& loss);

  // Divides the gradients that are here by the scale, before they are looked at or clipped
  // (ClipGradNorm()), and finds out whether those of all ranks are finite. Step() does it where it
  // was not done. The optimizer of a FullySharded is the one over its shards().
  //   FAILED_PRECONDITION, naming the rank and what to do: this was done, or Step() was, since the
  //     last Update(); no rank has a gradient, or none has scaled a loss; the ranks' scales differ
  Status Unscale(torch::optim::Optimizer& optimizer);
  Status Unscale(ShardedOptimizer& optimizer);

  // Steps, unless some rank's gradient is not finite: then no rank does. Whether it stepped. Errors
  // are Unscale()'s and the step's own.
  Result<bool> Step(torch::optim::Optimizer& optimizer);
  Result<bool> Step(ShardedOptimizer& optimizer);
  template <typename Module>
  Result<bool> Step(FullySharded<Module>& model, torch::optim::Optimizer& optimizer) {
    return StepBy(
        optimizer, [&] { return model.Step(optimizer); }, [&] { return model.SkipStep(); });
  }

  // At the end of the iteration, after the last Step(): the scale falls where a step was left out,
  // and grows after growth_interval updates without. Or it becomes `new_scale`, more than 0.
  //   FAILED_PRECONDITION  there was no Step() or Unscale() since the last one
  //   INVALID_ARGUMENT     new_scale
  //   OUT_OF_RANGE         the scale fell to 0, since gradients are finite at none
  Status Update();
  Status Update(double new_scale);

  // 1 where it is not enabled.
  double scale() const { return options_.enabled ? scale_ : 1; }
  // Updates in a row without an overflow, below growth_interval.
  int64_t growth_tracker() const { return growth_tracker_; }
  bool enabled() const { return options_.enabled; }
  // Whether the optimizer's gradients are known not to be finite, since the last Update().
  bool found_non_finite(const torch::optim::Optimizer& optimizer) const;

  // After Update(). Under the names of state_dict() in PyTorch; the same on all ranks, so that one
  // saves it. Nothing where it is not enabled.
  void SaveState(torch::serialize::OutputArchive& archive) const;
  // Not collective; all ranks load the same, whatever their number. INVALID_ARGUMENT, naming the
  // entry: it is missing or no such value; then what there was stays.
  Status LoadState(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  // Of an optimizer, since the last Update().
  struct Iteration {
    Stage stage = Stage::kReady;
    bool found = false;
  };

  ShardedGradScaler(Communicator& communicator, GradScalerOptions options);

  Status UnscaleReady(torch::optim::Optimizer& optimizer, Iteration& iteration);
  // What the ranks come to together, of what this one found.
  Status Agree(bool has_gradients, bool* found);
  // `skip`: in the place of `step` where that is left out.
  Result<bool> StepBy(torch::optim::Optimizer& optimizer, const std::function<Status()>& step,
                      const std::function<Status()>& skip);
  void EndIteration();
  std::string Mine() const;
  Status Fail(const Status& status);

  Communicator& communicator_;
  GradScalerOptions options_;
  // In float32, as PyTorch keeps it.
  float scale_;
  int64_t growth_tracker_ = 0;
  // Whether a loss was scaled since the last Update().
  bool scaled_ = false;
  std::map<const torch::optim::Optimizer*, Iteration> iterations_;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_GRAD_SCALER_H_
