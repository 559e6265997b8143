#include "cadre/torch/fully_sharded/fully_sharded_parts.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/gradient_norm.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "torch/utils.h"

namespace cadre::nn {

FullyShardedParts::FullyShardedParts(std::shared_ptr<torch::nn::Module> module,
                                     FullyShardedUnits* units)
    : module_(std::move(module)),
      units_(*units),
      communicator_(*units->route().parts.host),
      flats_(units->flats()) {}

std::vector<torch::Tensor> FullyShardedParts::shards() const {
  std::vector<torch::Tensor> shards;
  for (const FlatParameter* const flat : flats_) {
    if (flat->trained()) shards.push_back(flat->shard());
  }
  return shards;
}

Status FullyShardedParts::CheckOptimizer(const torch::optim::Optimizer& optimizer) const {
  const Status usable = CheckStepsEachAlone(optimizer);
  if (!usable.ok()) return InvalidArgumentError(units_.Mine() + usable.message());
  std::map<const void*, std::string> names;
  std::set<const void*> ours;
  for (const FlatParameter* const flat : flats_) {
    if (flat->trained()) ours.insert(flat->shard().unsafeGetTensorImpl());
    for (const FlatMember& member : flat->members()) {
      names.emplace(member.tensor.unsafeGetTensorImpl(), member.name);
    }
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      if (ours.count(tensor.unsafeGetTensorImpl()) > 0) continue;
      const auto name = names.find(tensor.unsafeGetTensorImpl());
      const std::string what = name == names.end() ? "a tensor that is not one of shards()"
                                                   : "parameter '" + name->second + "' itself";
      return InvalidArgumentError(units_.Mine() + "the optimizer holds " + what +
                                  ": make it over shards(), after the model was sharded");
    }
  }
  return OkStatus();
}

Status FullyShardedParts::Step(torch::optim::Optimizer& optimizer) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  return units_.Fail(Guarded("step of a sharded model", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckOptimizer(optimizer));
    CADRE_RETURN_IF_ERROR(TakeAveraged());
    units_.AwaitCopies();
    optimizer.step();
    return OkStatus();
  }));
}

Status FullyShardedParts::SkipStep() {
  CADRE_RETURN_IF_ERROR(units_.failure());
  return units_.Fail(TakeAveraged());
}

Status FullyShardedParts::TakeAveraged() {
  if (units_.TakeAveraged()) return OkStatus();
  return FailedPreconditionError(
      units_.Mine() +
      "a step without gradients of all ranks: call Finish() after a backward pass outside of "
      "NoSync");
}

void FullyShardedParts::ZeroGrad() {
  units_.EndReductions();
  for (const FlatParameter* const flat : flats_) {
    flat->shard().mutable_grad() = torch::Tensor();
    for (const FlatMember& member : flat->members()) {
      member.tensor.mutable_grad() = torch::Tensor();
    }
  }
}

Result<double> FullyShardedParts::ClipGradNorm(double max_norm, double norm_type) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  CADRE_RETURN_IF_ERROR(CheckNorm(max_norm, norm_type));
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& shard : shards()) {
    if (shard.grad().defined()) gradients.push_back(shard.grad());
  }
  double total = 0;
  CADRE_RETURN_IF_ERROR(units_.Fail(Guarded("norm of the gradients", [&]() -> Status {
    const torch::NoGradGuard no_grad;
    CADRE_ASSIGN_OR_RETURN(
        total, NormOverRanks(communicator_, gradients, norm_type, units_.route().timeout));
    ClipToNorm(gradients, total, max_norm);
    return OkStatus();
  })));
  return total;
}

}  // namespace cadre::nn
