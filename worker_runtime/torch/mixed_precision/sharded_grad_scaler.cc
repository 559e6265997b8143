#include "cadre/torch/sharded_grad_scaler.h"

#include <array>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "cadre/status_macros.h"
#include "cadre/torch/sharded_optimizer.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"
#include "worker_runtime/torch/guarded.h"

namespace cadre::nn {
namespace {

constexpr char kScaleKey[] = "scale";
constexpr char kGrowthFactorKey[] = "growth_factor";
constexpr char kBackoffFactorKey[] = "backoff_factor";
constexpr char kGrowthIntervalKey[] = "growth_interval";
constexpr char kGrowthTrackerKey[] = "_growth_tracker";

// A scale must be a positive, finite float32.
bool IsScale(double value) {
  const auto scale = static_cast<float>(value);
  return std::isfinite(scale) && scale > 0;
}

std::string Text(double value) {
  std::string text = std::to_string(value);
  // Turns "65536.000000" into "65536".
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

Status CheckScaling(double scale, const GradScalerOptions& options) {
  std::string what;
  if (!IsScale(scale)) {
    what = "the scale is " + Text(scale) + ": it must be more than 0 and finite in float32";
  } else if (!(options.growth_factor > 1 && std::isfinite(options.growth_factor))) {
    what = "growth_factor is " + Text(options.growth_factor) + ": it must be more than 1";
  } else if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    what = "backoff_factor is " + Text(options.backoff_factor) + ": it must be between 0 and 1";
  } else if (options.growth_interval < 1) {
    what =
        "growth_interval is " + std::to_string(options.growth_interval) + ": it must be at least 1";
  }
  return what.empty() ? OkStatus() : InvalidArgumentError(what);
}

// Whether this libtorch has the fused check for the tensor's device: 1.13 has it for CUDA alone.
bool HasFusedCheck(const torch::Tensor& like) {
  static const auto op = c10::Dispatcher::singleton().findSchema(
      {"aten::_amp_foreach_non_finite_check_and_unscale_", ""});
  return op.has_value() && op->hasKernelForDispatchKey(like.options().computeDispatchKey());
}

// Takes gradients of one device and type, multiplies them by `factor`, and returns whether one was
// not finite, as a tensor of one element on that device. The arithmetic is that of the fused check.
torch::Tensor MultiplyAndCheck(const std::vector<torch::Tensor>& gradients, float factor) {
  const auto options = gradients.front().options().dtype(torch::kFloat32).requires_grad(false);
  if (HasFusedCheck(gradients.front())) {
    torch::Tensor found = torch::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found,
                                                   torch::full({1}, factor, options));
    return found;
  }
  std::vector<torch::Tensor> finite;
  for (const torch::Tensor& gradient : gradients) {
    finite.push_back(torch::isfinite(gradient).all());
    torch::Tensor(gradient).mul_(factor);
  }
  return torch::stack(finite).all().logical_not().to(torch::kFloat32).view({1});
}

// Gradients by device and type.
using GradientKinds =
    std::map<std::pair<std::string, torch::ScalarType>, std::vector<torch::Tensor>>;

GradientKinds GradientsOf(torch::optim::Optimizer& optimizer, bool* any) {
  GradientKinds kinds;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      torch::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      *any = true;
      // Several values of one sparse element may overflow when they are summed.
      if (gradient.is_sparse()) gradient = gradient.coalesce();
      const torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      if (values.numel() == 0) continue;
      kinds[{values.device().str(), values.scalar_type()}].push_back(values);
    }
  }
  return kinds;
}

template <typename Number>
Status ReadEntry(torch::serialize::InputArchive& archive, const char* key, Number* number) {
  constexpr bool kIsDouble = std::is_same_v<Number, double>;
  torch::IValue value;
  if (!archive.try_read(key, value)) {
    return InvalidArgumentError(std::string("it has no '") + key + "'");
  }
  if (kIsDouble ? !value.isDouble() : !value.isInt()) {
    return InvalidArgumentError(std::string("'") + key + "' is of type " + value.tagKind());
  }
  if constexpr (kIsDouble) {
    *number = value.toDouble();
  } else {
    *number = value.toInt();
  }
  return OkStatus();
}

}  // namespace

ShardedGradScaler::ShardedGradScaler(Communicator& communicator, GradScalerOptions options)
    : communicator_(communicator),
      options_(std::move(options)),
      scale_(static_cast<float>(options_.init_scale)) {}

Result<std::unique_ptr<ShardedGradScaler>> ShardedGradScaler::Create(Communicator& communicator,
                                                                     GradScalerOptions options) {
  const Status usable = CheckScaling(options.init_scale, options);
  if (!usable.ok()) return InvalidArgumentError("ShardedGradScaler: " + usable.message());
  return std::unique_ptr<ShardedGradScaler>(
      new ShardedGradScaler(communicator, std::move(options)));
}

std::string ShardedGradScaler::Mine() const {
  return "rank " + std::to_string(communicator_.rank()) + ": ";
}

Status ShardedGradScaler::Fail(const Status& status) {
  if (status.ok() || !failure_.ok()) return failure_;
  failure_ = status;
  // The other ranks wait for this rank's result.
  communicator_.Abort();
  return failure_;
}

torch::Tensor ShardedGradScaler::Scale(const torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  scaled_ = true;
  return loss * static_cast<double>(scale_);
}

Status ShardedGradScaler::Unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return OkStatus();
  CADRE_RETURN_IF_ERROR(failure_);
  Iteration& iteration = iterations_[&optimizer];
  if (iteration.stage == Stage::kReady) return UnscaleReady(optimizer, iteration);
  const bool stepped = iteration.stage == Stage::kStepped;
  return Fail(FailedPreconditionError(
      Mine() + "Unscale() was called " + (stepped ? "after Step()" : "twice for one optimizer") +
      ": call Update() at the end of each iteration, and Unscale() at most once in it, before "
      "Step()"));
}

Status ShardedGradScaler::Unscale(ShardedOptimizer& optimizer) {
  return Unscale(optimizer.optimizer());
}

Status ShardedGradScaler::UnscaleReady(torch::optim::Optimizer& optimizer, Iteration& iteration) {
  return Fail(Guarded("unscaling of gradients", [&]() -> Status {
    const torch::NoGradGuard no_grad;
    // PyTorch does the same: one division, which is exact for powers of two.
    const auto factor = static_cast<float>(1 / static_cast<double>(scale_));
    bool any = false;
    std::map<std::string, std::vector<torch::Tensor>> founds;
    for (const auto& [kind, gradients] : GradientsOf(optimizer, &any)) {
      founds[kind.first].push_back(MultiplyAndCheck(gradients, factor));
    }
    for (const auto& [device, found] : founds) {
      iteration.found = torch::cat(found).max().item<float>() != 0 || iteration.found;
    }
    CADRE_RETURN_IF_ERROR(Agree(any, &iteration.found));
    iteration.stage = Stage::kUnscaled;
    return OkStatus();
  }));
}

Status ShardedGradScaler::Agree(bool has_gradients, bool* found) {
  const auto tracker = static_cast<double>(growth_tracker_);
  enum {
    kFound,
    kHasGradients,
    kScaled,
    kMostScale,
    kLeastScale,
    kMostTracker,
    kLeastTracker,
    kAll
  };
  // A maximum over all ranks; for negated values it is a minimum.
  std::array<double, kAll> all = {*found ? 1.0 : 0.0,
                                  has_gradients ? 1.0 : 0.0,
                                  scaled_ ? 1.0 : 0.0,
                                  scale_,
                                  -scale_,
                                  tracker,
                                  -tracker};
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      communicator_,
      communicator_.AllReduce({all.data(), all.size(), DataType::kFloat64}, ReduceOp::kMax),
      options_.timeout));
  const bool scales_differ = all[kMostScale] != -all[kLeastScale];
  if (scales_differ || all[kMostTracker] != -all[kLeastTracker]) {
    return FailedPreconditionError(
        Mine() + "the ranks' gradient scalers differ: " +
        (scales_differ
             ? "their scales are between " + Text(-all[kLeastScale]) + " and " +
                   Text(all[kMostScale])
             : "they are between " + Text(-all[kLeastTracker]) + " and " + Text(all[kMostTracker]) +
                   " updates after the last change of the scale") +
        "; create them with the same options, and load the same state on all ranks");
  }
  if (all[kHasGradients] == 0) {
    return FailedPreconditionError(
        Mine() +
        "no rank has a gradient of this optimizer's to unscale: call Scale(loss).backward(), and "
        "Finish() of the model, before Unscale() or Step()");
  }
  if (all[kScaled] == 0) {
    return FailedPreconditionError(
        Mine() +
        "the gradients are of a loss that no rank has scaled since the last Update(): call "
        "Scale(loss).backward() in place of loss.backward()");
  }
  *found = all[kFound] != 0;
  return OkStatus();
}

Result<bool> ShardedGradScaler::StepBy(torch::optim::Optimizer& optimizer,
                                       const std::function<Status()>& step,
                                       const std::function<Status()>& skip) {
  if (!options_.enabled) {
    CADRE_RETURN_IF_ERROR(step());
    return true;
  }
  CADRE_RETURN_IF_ERROR(failure_);
  Iteration& iteration = iterations_[&optimizer];
  if (iteration.stage == Stage::kStepped) {
    CADRE_RETURN_IF_ERROR(Fail(FailedPreconditionError(
        Mine() +
        "Step() was called twice for one optimizer: call Update() at the end of each iteration")));
  }
  if (iteration.stage == Stage::kReady) {
    CADRE_RETURN_IF_ERROR(UnscaleReady(optimizer, iteration));
  }
  CADRE_RETURN_IF_ERROR(Fail(iteration.found ? skip() : step()));
  iteration.stage = Stage::kStepped;
  return !iteration.found;
}

Result<bool> ShardedGradScaler::Step(torch::optim::Optimizer& optimizer) {
  const auto step = [&optimizer] {
    return Guarded("optimizer", [&optimizer] {
      optimizer.step();
      return OkStatus();
    });
  };
  return StepBy(optimizer, step, [] { return OkStatus(); });
}

Result<bool> ShardedGradScaler::Step(ShardedOptimizer& optimizer) {
  return StepBy(
      optimizer.optimizer(), [&] { return optimizer.Step(); },
      [&] { return optimizer.SkipStep(); });
}

void ShardedGradScaler::EndIteration() {
  iterations_.clear();
  scaled_ = false;
}

Status ShardedGradScaler::Update() {
  if (!options_.enabled) return OkStatus();
  CADRE_RETURN_IF_ERROR(failure_);
  bool any = false, found = false;
  for (const auto& [optimizer, iteration] : iterations_) {
    any = any || iteration.stage != Stage::kReady;
    found = found || iteration.found;
  }
  if (!any) {
    return FailedPreconditionError(
        Mine() +
        "Update() was called without a Step() since the last Update(): call Step() of each "
        "optimizer before it");
  }
  EndIteration();
  // The rule of at::_amp_update_scale_, which not every release has for the host.
  if (found) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    growth_tracker_ = 0;
    if (scale_ > 0) return OkStatus();
    return Fail(OutOfRangeError(Mine() +
                                "the scale fell to 0: the gradients are not finite at any scale, "
                                "so look for what is not finite in the model or its inputs"));
  }
  if (++growth_tracker_ < options_.growth_interval) return OkStatus();
  growth_tracker_ = 0;
  const auto grown = static_cast<float>(scale_ * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
  return OkStatus();
}

Status ShardedGradScaler::Update(double new_scale) {
  if (!options_.enabled) return OkStatus();
  CADRE_RETURN_IF_ERROR(failure_);
  if (!IsScale(new_scale)) {
    return InvalidArgumentError(Mine() + "Update(" + Text(new_scale) +
                                "): a scale is more than 0 and finite in float32");
  }
  EndIteration();
  scale_ = static_cast<float>(new_scale);
  return OkStatus();
}

bool ShardedGradScaler::found_non_finite(const torch::optim::Optimizer& optimizer) const {
  const auto iteration = iterations_.find(&optimizer);
  return iteration != iterations_.end() && iteration->second.found;
}

void ShardedGradScaler::SaveState(torch::serialize::OutputArchive& archive) const {
  if (!options_.enabled) return;
  archive.write(kScaleKey, torch::IValue(static_cast<double>(scale_)));
  archive.write(kGrowthFactorKey, torch::IValue(options_.growth_factor));
  archive.write(kBackoffFactorKey, torch::IValue(options_.backoff_factor));
  archive.write(kGrowthIntervalKey, torch::IValue(options_.growth_interval));
  archive.write(kGrowthTrackerKey, torch::IValue(growth_tracker_));
}

Status ShardedGradScaler::LoadState(torch::serialize::InputArchive& archive) {
  if (!options_.enabled) return OkStatus();
  GradScalerOptions options = options_;
  double scale = 0;
  int64_t tracker = 0;
  const Status usable = Guarded("entries", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(ReadEntry(archive, kScaleKey, &scale));
    CADRE_RETURN_IF_ERROR(ReadEntry(archive, kGrowthFactorKey, &options.growth_factor));
    CADRE_RETURN_IF_ERROR(ReadEntry(archive, kBackoffFactorKey, &options.backoff_factor));
    CADRE_RETURN_IF_ERROR(ReadEntry(archive, kGrowthIntervalKey, &options.growth_interval));
    CADRE_RETURN_IF_ERROR(ReadEntry(archive, kGrowthTrackerKey, &tracker));
    CADRE_RETURN_IF_ERROR(CheckScaling(scale, options));
    if (tracker >= 0 && tracker < options.growth_interval) return OkStatus();
    return InvalidArgumentError(std::string("'") + kGrowthTrackerKey + "' is " +
                                std::to_string(tracker) + ": it must be below growth_interval (" +
                                std::to_string(options.growth_interval) + ")");
  });
  if (!usable.ok()) {
    return InvalidArgumentError(Mine() + "this is not the state of a gradient scaler: " +
                                usable.message() + "; load what SaveState() wrote");
  }
  options_ = options;
  scale_ = static_cast<float>(scale);
  growth_tracker_ = tracker;
  return OkStatus();
}

}  // namespace cadre::nn
