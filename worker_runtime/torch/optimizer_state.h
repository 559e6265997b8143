// The state of libtorch's optimizers, for any release of libtorch.
#ifndef CADRE_WORKER_RUNTIME_TORCH_OPTIMIZER_STATE_H_
#define CADRE_WORKER_RUNTIME_TORCH_OPTIMIZER_STATE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cadre/status.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::nn {

using OptimizerStates = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

// For each of an optimizer's groups, the parameters that it has or stands for, with their names.
using NamedGroups = std::vector<std::vector<std::pair<std::string, torch::Tensor>>>;
std::vector<std::string> GroupNames(const NamedGroups& groups);
std::vector<std::vector<torch::Tensor>> GroupParameters(const NamedGroups& groups);

// The optimizer's class. Classes derived from Adam or AdamW share its state, and count as it.
std::string KindOf(const torch::optim::Optimizer& optimizer);
// INVALID_ARGUMENT: the optimizer steps all parameters together.
Status CheckStepsEachAlone(const torch::optim::Optimizer& optimizer);

// Written in addition to what libtorch's load() reads: the optimizer's class, and the parameters'
// names in the order of the groups.
void WriteOptimizerIdentity(torch::serialize::OutputArchive& archive, const std::string& kind,
                            const std::vector<std::string>& names);
// Checks what WriteOptimizerIdentity() wrote; a state without that is accepted. INVALID_ARGUMENT,
// naming the first parameter that differs: the state is another optimizer's.
Status CheckOptimizerIdentity(torch::serialize::InputArchive& archive, const std::string& kind,
                              const std::vector<std::string>& names);

// A string before libtorch 2.x, a pointer since.
OptimizerStates::key_type StateKey(const torch::Tensor& parameter);

// The tensors of a state of libtorch's own optimizers, defined or not, in the same order for each
// state of a kind. Returns false for other optimizers, whose states are opaque.
bool TensorsOf(torch::optim::OptimizerParamState& state, std::vector<torch::Tensor*>* tensors);
void MoveTo(torch::optim::OptimizerParamState& state, torch::Device device);
// INVALID_ARGUMENT, naming the parameter: the state belongs to a parameter of another shape.
Status CheckShapes(torch::optim::OptimizerParamState& state, const std::string& name,
                   torch::IntArrayRef shape);

// Moves the optimizer's state aside, and restores it, with its options, in the destructor, unless
// Keep() was called.
class StateAside {
 public:
  explicit StateAside(torch::optim::Optimizer& optimizer);
  ~StateAside();
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

  void Keep() { kept_ = true; }
  // Gives the optimizer copies on the host; tensors already there are not copied.
  void CopyToHost();
  // The state that was moved aside.
  const OptimizerStates& states() const { return state_; }

 private:
  torch::optim::Optimizer& optimizer_;
  OptimizerStates state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  bool kept_ = false;
};

// While it lives, the optimizer's groups have other parameters: a step() does not change the
// original ones, and creates no state for them.
class OtherParameters {
 public:
  // `others` has a list for each group.
  OtherParameters(torch::optim::Optimizer& optimizer,
                  std::vector<std::vector<torch::Tensor>> others)
      : optimizer_(optimizer), others_(std::move(others)) {
    Swap();
  }
  ~OtherParameters() { Swap(); }
  OtherParameters(const OtherParameters&) = delete;
  OtherParameters& operator=(const OtherParameters&) = delete;

 private:
  void Swap() {
    for (size_t g = 0; g < others_.size(); ++g) {
      std::swap(optimizer_.param_groups()[g].params(), others_[g]);
    }
  }

  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<torch::Tensor>> others_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_OPTIMIZER_STATE_H_
