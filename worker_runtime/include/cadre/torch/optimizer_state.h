// The state of libtorch's optimizers, whatever its release.
#ifndef CADRE_TORCH_OPTIMIZER_STATE_H_
#define CADRE_TORCH_OPTIMIZER_STATE_H_

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

// Of each of an optimizer's groups, the parameters that it has or stands for, with their names.
using NamedGroups = std::vector<std::vector<std::pair<std::string, torch::Tensor>>>;
std::vector<std::string> GroupNames(const NamedGroups& groups);
std::vector<std::vector<torch::Tensor>> GroupParameters(const NamedGroups& groups);

// Its class. What comes of Adam or AdamW has its state, and is that.
std::string KindOf(const torch::optim::Optimizer& optimizer);
// INVALID_ARGUMENT: it steps all parameters together.
Status CheckStepsEachAlone(const torch::optim::Optimizer& optimizer);

// Beside what libtorch's load() reads: the optimizer's class, and the parameters' names in the
// order of the groups.
void WriteWhose(torch::serialize::OutputArchive& archive, const std::string& kind,
                const std::vector<std::string>& names);
// By what WriteWhose() wrote; a state without that may be anybody's. INVALID_ARGUMENT, naming the
// first parameter that differs: it is another's.
Status CheckWhose(torch::serialize::InputArchive& archive, const std::string& kind,
                  const std::vector<std::string>& names);

// Text until 2.x, a pointer since.
OptimizerStates::key_type StateKey(const torch::Tensor& parameter);

// The tensors of a state of libtorch's own, defined or not, in the same order for each of a kind.
// Those of other optimizers show nothing of what is in them: false.
bool TensorsOf(torch::optim::OptimizerParamState& state, std::vector<torch::Tensor*>* tensors);
void MoveTo(torch::optim::OptimizerParamState& state, torch::Device device);
// INVALID_ARGUMENT, naming the parameter: the state is one of a parameter of another shape.
Status CheckShapes(torch::optim::OptimizerParamState& state, const std::string& name,
                   torch::IntArrayRef shape);

// Empties the optimizer's state, and gives it back what it had unless told to keep what came since;
// its options, too.
class StateAside {
 public:
  explicit StateAside(torch::optim::Optimizer& optimizer);
  ~StateAside();
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

  void Keep() { kept_ = true; }
  // The optimizer gets copies on the host; what is there already is not copied.
  void LendToHost();
  // What was put aside.
  const OptimizerStates& states() const { return state_; }

 private:
  torch::optim::Optimizer& optimizer_;
  OptimizerStates state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  bool kept_ = false;
};

// While it lives, the optimizer's groups have other parameters: a step() does nothing to those they
// had, and makes no state for them.
class OtherParameters {
 public:
  // For each group.
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

#endif  // CADRE_TORCH_OPTIMIZER_STATE_H_
