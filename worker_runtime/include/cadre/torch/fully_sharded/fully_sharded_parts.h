// This rank's parts of a FullySharded model, as optimizers and checkpoints see them between its
// passes: what FullySharded is made of.
#ifndef CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_PARTS_H_
#define CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_PARTS_H_

#include <memory>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/fully_sharded/fully_sharded_units.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::nn {

// As FullySharded, which says more. The units must outlive it.
class FullyShardedParts {
 public:
  FullyShardedParts(std::shared_ptr<torch::nn::Module> module, FullyShardedUnits* units);

  std::vector<torch::Tensor> shards() const;
  Status Step(torch::optim::Optimizer& optimizer);
  Status SkipStep();
  void ZeroGrad();
  Result<double> ClipGradNorm(double max_norm, double norm_type);

  Status SaveState(torch::serialize::OutputArchive& archive, int recipient);
  Status LoadState(torch::serialize::InputArchive& archive);
  Status SaveOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::OutputArchive& archive, int recipient);
  Status LoadOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::InputArchive& archive);

  // INVALID_ARGUMENT, naming the parameter and the rank: it is not over shards().
  Status CheckOptimizer(const torch::optim::Optimizer& optimizer) const;
  torch::nn::Module& module() const { return *module_; }
  FullyShardedUnits& units() const { return units_; }
  // In the order of the units.
  const std::vector<FlatParameter*>& flats() const { return flats_; }

 private:
  Status CheckRecipient(int recipient) const;
  Status TakeAveraged();

  const std::shared_ptr<torch::nn::Module> module_;
  FullyShardedUnits& units_;
  Communicator& communicator_;
  const std::vector<FlatParameter*> flats_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_PARTS_H_
