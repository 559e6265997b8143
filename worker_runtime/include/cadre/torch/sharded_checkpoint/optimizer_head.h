// An optimizer without the content of its state's tensors, as sharded checkpoints have it; for
// their own sources alone.
#ifndef CADRE_TORCH_SHARDED_CHECKPOINT_OPTIMIZER_HEAD_H_
#define CADRE_TORCH_SHARDED_CHECKPOINT_OPTIMIZER_HEAD_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cadre/sharded_state.h"
#include "cadre/status.h"
#include "cadre/torch/optimizer_state.h"
#include "torch/optim/optimizer.h"
#include "torch/types.h"

namespace cadre::nn {

// By the parameters' names; their tensors have no elements.
using HollowStates = std::map<std::string, std::unique_ptr<torch::optim::OptimizerParamState>>;

// As TensorsOf(). UNIMPLEMENTED: the optimizer is none of libtorch's own.
Status VisibleTensors(const torch::optim::Optimizer& optimizer,
                      torch::optim::OptimizerParamState& state,
                      std::vector<torch::Tensor*>* tensors);

std::unique_ptr<torch::optim::OptimizerParamState> Hollow(
    const torch::optim::OptimizerParamState& state);

// As the save() of an optimizer over these groups, with the states for which `like` has, under a
// parameter's name, that of the one in `states` by which it is: several may have one.
std::string WriteHead(torch::optim::Optimizer& optimizer, const NamedGroups& groups,
                      const HollowStates& states, const std::map<std::string, std::string>& like);

// Reads all heads that there are. The optimizer gets the options, and a state that is the caller's
// to put aside and to replace. INVALID_ARGUMENT: they are another optimizer's, or there is none.
// Throws what libtorch does of what it cannot read.
Status ReadHeads(const SavedShards& saved, const NamedGroups& groups,
                 torch::optim::Optimizer& optimizer, HollowStates* states);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_CHECKPOINT_OPTIMIZER_HEAD_H_
