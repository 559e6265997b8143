#include "cadre/torch/fused_adam.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/utils.h"
#include "torch/version.h"
#include "worker_runtime/torch/optimizer_state.h"

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
#define CADRE_TORCH_HAS_FUSED_ADAM 1
#include "ATen/ops/_fused_adam.h"
#include "ATen/ops/_fused_adamw.h"
#endif

namespace cadre::nn {
namespace {

#ifdef CADRE_TORCH_HAS_FUSED_ADAM

struct AdamKernel {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  template <typename... Arguments>
  static void Step(Arguments&&... arguments) {
    at::_fused_adam_(std::forward<Arguments>(arguments)...);
  }
};

struct AdamWKernel {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  template <typename... Arguments>
  static void Step(Arguments&&... arguments) {
    at::_fused_adamw_(std::forward<Arguments>(arguments)...);
  }
};

bool IsStepped(const torch::Tensor& parameter) { return parameter.grad().defined(); }

// Whether the fused kernels can handle the parameter.
bool CanFuse(const torch::Tensor& parameter) {
  if (!IsStepped(parameter)) return true;
  const torch::Tensor& grad = parameter.grad();
  const bool device = parameter.is_cpu() || parameter.is_cuda();
  return device && grad.layout() == torch::kStrided && grad.is_floating_point() &&
         grad.scalar_type() == parameter.scalar_type() && grad.device() == parameter.device() &&
         grad.strides() == parameter.strides() && parameter.is_non_overlapping_and_dense();
}

// The arguments of one kernel call: tensors with the same device, type and number of steps.
struct Batch {
  std::vector<torch::Tensor> parameters, grads, averages, squares, greatest;
};

template <typename Kind>
typename Kind::State& StateOf(OptimizerStates& states, const torch::Tensor& parameter,
                              bool amsgrad) {
  auto& state = states[StateKey(parameter)];
  if (state == nullptr) {
    auto made = std::make_unique<typename Kind::State>();
    made->exp_avg(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
    made->exp_avg_sq(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
    state = std::move(made);
  }
  auto& own = static_cast<typename Kind::State&>(*state);
  // amsgrad may also be switched on later.
  if (amsgrad && !own.max_exp_avg_sq().defined()) {
    own.max_exp_avg_sq(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
  }
  return own;
}

template <typename Kind>
void StepGroup(torch::optim::OptimizerParamGroup& group, OptimizerStates& states) {
  const auto& options = static_cast<const typename Kind::Options&>(group.options());
  using Key = std::tuple<std::string, torch::ScalarType, int64_t>;
  std::map<Key, Batch> batches;
  for (const torch::Tensor& parameter : group.params()) {
    if (!IsStepped(parameter)) continue;
    auto& state = StateOf<Kind>(states, parameter, options.amsgrad());
    state.step(state.step() + 1);
    Batch& batch = batches[{parameter.device().str(), parameter.scalar_type(), state.step()}];
    batch.parameters.push_back(parameter);
    batch.grads.push_back(parameter.grad());
    batch.averages.push_back(state.exp_avg());
    batch.squares.push_back(state.exp_avg_sq());
    if (options.amsgrad()) batch.greatest.push_back(state.max_exp_avg_sq());
  }
  const auto [beta1, beta2] = options.betas();
  for (auto& [key, batch] : batches) {
    const torch::Tensor step =
        torch::full({}, static_cast<double>(std::get<int64_t>(key)),
                    torch::dtype(torch::kFloat32).device(batch.parameters.front().device()));
    const std::vector<torch::Tensor> steps(batch.parameters.size(), step);
    Kind::Step(batch.parameters, batch.grads, batch.averages, batch.squares, batch.greatest, steps,
               options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
               /*maximize=*/false);
    // The kernels do not change the version, so that autograd would take the new values for those
    // that it saved.
    for (const torch::Tensor& parameter : batch.parameters) {
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
}

template <typename Kind>
bool StepFused(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!std::all_of(group.params().begin(), group.params().end(), CanFuse)) return false;
  }
  const torch::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) StepGroup<Kind>(group, optimizer.state());
  return true;
}

#else

struct AdamKernel {};
struct AdamWKernel {};

template <typename Kind>
bool StepFused(torch::optim::Optimizer&) {
  return false;
}

#endif

torch::Tensor LossOf(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const torch::AutoGradMode with_grad(true);
  return closure();
}

template <typename Kind, typename Base>
torch::Tensor StepAll(Base& optimizer, const torch::optim::Optimizer::LossClosure& closure) {
  const torch::Tensor loss = LossOf(closure);
  if (!StepFused<Kind>(optimizer)) optimizer.Base::step();
  return loss;
}

}  // namespace

torch::Tensor FusedAdam::step(LossClosure closure) {
  return StepAll<AdamKernel, Adam>(*this, closure);
}

torch::Tensor FusedAdamW::step(LossClosure closure) {
  return StepAll<AdamWKernel, AdamW>(*this, closure);
}

}  // namespace cadre::nn
