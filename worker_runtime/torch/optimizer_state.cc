#include "cadre/torch/optimizer_state.h"

#include <sstream>

#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/rmsprop.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using torch::optim::OptimizerParamState;

template <typename State>
using TensorOf = torch::Tensor& (State::*)() noexcept;

template <typename State, typename... Members>
bool TensorsAs(OptimizerParamState& state, std::vector<torch::Tensor*>* tensors,
               Members... members) {
  auto* const own = dynamic_cast<State*>(&state);
  if (own == nullptr) return false;
  *tensors = {&(own->*members)()...};
  return true;
}

}  // namespace

OptimizerStates::key_type StateKey(const torch::Tensor& parameter) {
  OptimizerStates::key_type key{};
  const auto set = [&parameter](auto& key) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(key)>>) {
      key = parameter.unsafeGetTensorImpl();
    } else {
      std::ostringstream text;
      text << parameter.unsafeGetTensorImpl();
      key = text.str();
    }
  };
  set(key);
  return key;
}

bool TensorsOf(OptimizerParamState& state, std::vector<torch::Tensor*>* tensors) {
  using namespace torch::optim;  // NOLINT: ten names.
  return TensorsAs<AdamParamState>(state, tensors,
                                   TensorOf<AdamParamState>(&AdamParamState::exp_avg),
                                   TensorOf<AdamParamState>(&AdamParamState::exp_avg_sq),
                                   TensorOf<AdamParamState>(&AdamParamState::max_exp_avg_sq)) ||
         TensorsAs<AdamWParamState>(state, tensors,
                                    TensorOf<AdamWParamState>(&AdamWParamState::exp_avg),
                                    TensorOf<AdamWParamState>(&AdamWParamState::exp_avg_sq),
                                    TensorOf<AdamWParamState>(&AdamWParamState::max_exp_avg_sq)) ||
         TensorsAs<SGDParamState>(state, tensors,
                                  TensorOf<SGDParamState>(&SGDParamState::momentum_buffer)) ||
         TensorsAs<RMSpropParamState>(
             state, tensors, TensorOf<RMSpropParamState>(&RMSpropParamState::square_avg),
             TensorOf<RMSpropParamState>(&RMSpropParamState::momentum_buffer),
             TensorOf<RMSpropParamState>(&RMSpropParamState::grad_avg)) ||
         TensorsAs<AdagradParamState>(state, tensors,
                                      TensorOf<AdagradParamState>(&AdagradParamState::sum));
}

void MoveTo(OptimizerParamState& state, torch::Device device) {
  std::vector<torch::Tensor*> tensors;
  (void)TensorsOf(state, &tensors);
  for (torch::Tensor* const tensor : tensors) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
}

StateAside::StateAside(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  std::swap(state_, optimizer_.state());
  for (const auto& group : optimizer_.param_groups()) {
    options_.push_back(group.has_options() ? group.options().clone() : nullptr);
  }
}

StateAside::~StateAside() {
  if (kept_) return;
  std::swap(state_, optimizer_.state());
  for (size_t g = 0; g < options_.size(); ++g) {
    if (options_[g] != nullptr) optimizer_.param_groups()[g].set_options(std::move(options_[g]));
  }
}

void StateAside::LendToHost() {
  for (const auto& [key, state] : state_) {
    auto copy = state->clone();
    MoveTo(*copy, torch::kCPU);
    optimizer_.state()[key] = std::move(copy);
  }
}

}  // namespace cadre::nn
