// How a model on the meta device gets its memory and first values: what FullySharded is made of.
#ifndef CADRE_TORCH_FULLY_SHARDED_META_INITIALIZATION_H_
#define CADRE_TORCH_FULLY_SHARDED_META_INITIALIZATION_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cadre/status.h"
#include "cadre/torch/fully_sharded/flat_parameter.h"
#include "cadre/torch/meta_device.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

// Goes through the modules as their constructors ran, in the order of registration and what is
// within a module before it, so that the same random numbers go to the same parameters as without
// the meta device. A unit's parameters have memory from its first module to its last; the root
// unit's from the first of all to the last.
class MetaInitialization {
 public:
  // Collective: rank 0's values of a unit's parameters go to all ranks, where that is wanted.
  using FromFirstRank = std::function<Status(const std::vector<FlatMember>&)>;

  // `who` is what errors begin with.
  MetaInitialization(std::string who, const torch::Device& device, InitializeModule initialize,
                     FromFirstRank from_first_rank);

  // The parameters that belong to the module and to those within it, but for those of units within.
  void AddUnit(const torch::nn::Module& module, const std::vector<FlatParameter*>& flats);
  // What belongs to no unit stays whole. Collective where there are units. INVALID_ARGUMENT, naming
  // it: a module that `initialize` does not know.
  Status Run(torch::nn::Module& model) { return Visit(model, ""); }

 private:
  Status Visit(torch::nn::Module& module, const std::string& name);
  Status InitializeOwn(torch::nn::Module& module, const std::string& name);
  // All of a unit's modules have initialized it.
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

#endif  // CADRE_TORCH_FULLY_SHARDED_META_INITIALIZATION_H_
