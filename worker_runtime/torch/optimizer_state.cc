#include "worker_runtime/torch/optimizer_state.h"

#include <algorithm>
#include <sstream>
#include <typeinfo>

#include "c10/util/Type.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/lbfgs.h"
#include "torch/optim/rmsprop.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using torch::optim::OptimizerParamState;

constexpr char kNamesKey[] = "cadre_parameters";
constexpr char kOptimizerKey[] = "cadre_optimizer";

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

std::vector<std::string> GroupNames(const NamedGroups& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) {
    for (const auto& [name, parameter] : group) names.push_back(name);
  }
  return names;
}

std::vector<std::vector<torch::Tensor>> GroupParameters(const NamedGroups& groups) {
  std::vector<std::vector<torch::Tensor>> parameters;
  for (const auto& group : groups) {
    auto& list = parameters.emplace_back();
    for (const auto& [name, parameter] : group) list.push_back(parameter);
  }
  return parameters;
}

std::string KindOf(const torch::optim::Optimizer& optimizer) {
  const std::type_info* kind = &typeid(optimizer);
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) kind = &typeid(torch::optim::Adam);
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) kind = &typeid(torch::optim::AdamW);
  return c10::demangle(kind->name());
}

Status CheckStepsEachAlone(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr) return OkStatus();
  return InvalidArgumentError("LBFGS steps all parameters together and cannot be sharded");
}

void WriteOptimizerIdentity(torch::serialize::OutputArchive& archive, const std::string& kind,
                            const std::vector<std::string>& names) {
  c10::List<std::string> list;
  for (const std::string& name : names) list.push_back(name);
  archive.write(kNamesKey, torch::IValue(list));
  archive.write(kOptimizerKey, torch::IValue(kind));
}

Status CheckOptimizerIdentity(torch::serialize::InputArchive& archive, const std::string& kind,
                              const std::vector<std::string>& names) {
  torch::IValue value;
  if (archive.try_read(kOptimizerKey, value) && value.toStringRef() != kind) {
    return InvalidArgumentError("the state is one of " + value.toStringRef() +
                                ", and the optimizer is " + kind);
  }
  if (!archive.try_read(kNamesKey, value)) return OkStatus();
  const auto theirs = value.toListRef();
  for (size_t i = 0; i < std::min(theirs.size(), names.size()); ++i) {
    if (theirs[i].toStringRef() == names[i]) continue;
    return InvalidArgumentError("the state is of another model: parameter " + std::to_string(i) +
                                " is '" + theirs[i].toStringRef() + "' there, and '" + names[i] +
                                "' in this optimizer");
  }
  if (theirs.size() == names.size()) return OkStatus();
  const bool more = theirs.size() > names.size();
  return InvalidArgumentError("the state is of another model: it has " +
                              std::to_string(theirs.size()) + " parameters, and this optimizer " +
                              std::to_string(names.size()) + "; only " +
                              (more ? "the state has '" + theirs[names.size()].toStringRef()
                                    : "the optimizer has '" + names[theirs.size()]) +
                              "'");
}

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

Status CheckShapes(OptimizerParamState& state, const std::string& name, torch::IntArrayRef shape) {
  std::vector<torch::Tensor*> tensors;
  (void)TensorsOf(state, &tensors);
  for (const torch::Tensor* const tensor : tensors) {
    if (!tensor->defined() || tensor->sizes() == shape) continue;
    std::ostringstream text;
    text << "the state is of another model: for parameter '" << name << "', which is " << shape
         << ", it has " << tensor->sizes();
    return InvalidArgumentError(text.str());
  }
  return OkStatus();
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

void StateAside::CopyToHost() {
  for (const auto& [key, state] : state_) {
    auto copy = state->clone();
    MoveTo(*copy, torch::kCPU);
    optimizer_.state()[key] = std::move(copy);
  }
}

}  // namespace cadre::nn
