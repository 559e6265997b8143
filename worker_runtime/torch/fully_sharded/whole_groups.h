// The groups of an optimizer over shards (FullySharded), expressed in whole parameters.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_WHOLE_GROUPS_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_WHOLE_GROUPS_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/types.h"
#include "worker_runtime/torch/fully_sharded/flat_parameter.h"
#include "worker_runtime/torch/optimizer_state.h"

namespace cadre::nn {

// Parameters are in the module's order. The optimizer's parameters must be shards of `flats`, which
// must outlive this.
class WholeGroups {
 public:
  struct Part {
    FlatParameter* flat;
    size_t member;
  };

  WholeGroups(const torch::nn::Module& module, const std::vector<FlatParameter*>& flats,
              const torch::optim::Optimizer& optimizer) {
    std::map<const void*, size_t> order;
    for (const auto& item : module.named_parameters()) {
      if (item.value().defined()) {
        order.emplace(item.value().unsafeGetTensorImpl(), order.size());
      }
    }
    std::map<const void*, FlatParameter*> flat_of;
    for (FlatParameter* const flat : flats) flat_of[flat->shard().unsafeGetTensorImpl()] = flat;
    for (const auto& group : optimizer.param_groups()) {
      std::vector<Part> parts;
      for (const torch::Tensor& shard : group.params()) {
        FlatParameter* const flat = flat_of.at(shard.unsafeGetTensorImpl());
        flats_.push_back(flat);
        for (size_t m = 0; m < flat->members().size(); ++m) parts.push_back({flat, m});
      }
      std::sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
        return order.at(TensorOf(a).unsafeGetTensorImpl()) <
               order.at(TensorOf(b).unsafeGetTensorImpl());
      });
      groups_.push_back(std::move(parts));
    }
  }

  static const torch::Tensor& TensorOf(const Part& part) {
    return part.flat->members()[part.member].tensor;
  }
  // In the order of the optimizer's own parameters.
  const std::vector<FlatParameter*>& flats() const { return flats_; }
  NamedGroups Named() const {
    NamedGroups named;
    for (const std::vector<Part>& group : groups_) {
      auto& list = named.emplace_back();
      for (const Part& part : group) {
        list.emplace_back(part.flat->members()[part.member].name, TensorOf(part));
      }
    }
    return named;
  }

 private:
  std::vector<FlatParameter*> flats_;
  std::vector<std::vector<Part>> groups_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_WHOLE_GROUPS_H_
