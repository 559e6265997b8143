// Gives a model on the meta device its memory and first values; a part of FullySharded.
// Implemented in meta_device.cc.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_META_INITIALIZATION_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_META_INITIALIZATION_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cadre/status.h"
#include "cadre/torch/meta_device.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "worker_runtime/torch/fully_sharded/flat_parameter.h"

namespace cadre::nn {

// Visits the modules in the order in which their constructors ran (the order of registration,
// submodules first), so that the same random numbers go to the same parameters as without the meta
// device. A unit's parameters have memory from its first module to its last; the root unit's
// throughout.
class MetaInitialization {
 public:
  // Collective: copies rank 0's values of a unit's parameters to all ranks, if that is wanted.
  using FromFirstRank = std::function<Status(const std::vector<FlatMember>&)>;

  // `who` is the beginning of error messages.
  MetaInitialization(std::string who, const torch::Device& device, InitializeModule initialize,
                     FromFirstRank from_first_rank);

  // Adds the parameters that belong to the module and its submodules, except those of nested units.
  void AddUnit(const torch::nn::Module& module, const std::vector<FlatParameter*>& flats);
  // Parameters of no unit stay whole. Collective if there are units. INVALID_ARGUMENT, naming it:
  // `initialize` does not know a module.
  Status Run(torch::nn::Module& model) { return Visit(model, ""); }

 private:
  Status Visit(torch::nn::Module& module, const std::string& name);
  Status InitializeOwn(torch::nn::Module& module, const std::string& name);
  // Called when all of a unit's modules have initialized it.
  Status Keep(const std::vector<FlatParameter*>& flats);

  const std::string who_;
  const torch::Device device_;
  const InitializeModule initialize_;
  const FromFirstRank from_first_rank_;
  std::map<const torch::nn::Module*, std::vector<FlatParameter*>> units_;
  std::set<const torch::nn::Module*> visited_;
  std::set<const void*> initialized_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_META_INITIALIZATION_H_
