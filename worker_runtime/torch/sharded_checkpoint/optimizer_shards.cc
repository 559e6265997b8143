// What a rank keeps of a model whose optimizer is sharded, to be saved and read again.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "cadre/torch/sharded_checkpoint/optimizer_head.h"
#include "cadre/torch/sharded_checkpoint/shard_collector.h"
#include "cadre/torch/sharded_checkpoint/shard_names.h"
#include "cadre/torch/sharded_checkpoint/shard_reading.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using Named = std::vector<std::pair<std::string, torch::Tensor>>;

// Each once, under its first name.
Named ParametersOf(const torch::nn::Module& module) {
  Named parameters;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    parameters.emplace_back(item.key(), item.value());
  }
  return parameters;
}

// INVALID_ARGUMENT: the module is not the one whose parameters the optimizer has.
Status NameGroups(const Named& parameters, torch::optim::Optimizer& optimizer,
                  NamedGroups* groups) {
  std::map<const void*, std::string> names;
  for (const auto& [name, tensor] : parameters) names[tensor.unsafeGetTensorImpl()] = name;
  for (const auto& group : optimizer.param_groups()) {
    auto& list = groups->emplace_back();
    for (const torch::Tensor& tensor : group.params()) {
      const auto name = names.find(tensor.unsafeGetTensorImpl());
      if (name == names.end()) {
        return InvalidArgumentError("the optimizer has a parameter that is not the module's");
      }
      list.emplace_back(name->second, tensor);
    }
  }
  return OkStatus();
}

std::string Mine(const ShardedOptimizer& optimizer) {
  return "rank " + std::to_string(optimizer.communicator().rank()) + ": ";
}

Status Collect(const torch::nn::Module& module, ShardedOptimizer& optimizer,
               ShardCollector* collector) {
  const int rank = optimizer.communicator().rank();
  const Named parameters = ParametersOf(module);
  for (const auto& [name, tensor] : parameters) {
    // What is not the optimizer's is nobody's, and the same on all ranks.
    const int owner = std::max(optimizer.OwnerOf(tensor), 0);
    collector->AddWhole(kModelPrefix + name, tensor, owner != rank);
  }
  collector->AddBuffers(module);
  NamedGroups groups;
  torch::optim::Optimizer& inner = optimizer.optimizer();
  CADRE_RETURN_IF_ERROR(NameGroups(parameters, inner, &groups));
  HollowStates states;
  std::map<std::string, std::string> like;
  for (const auto& group : groups) {
    for (const auto& [name, tensor] : group) {
      const auto state = inner.state().find(StateKey(tensor));
      if (state == inner.state().end()) continue;
      std::vector<torch::Tensor*> tensors;
      CADRE_RETURN_IF_ERROR(VisibleTensors(inner, *state->second, &tensors));
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!tensors[i]->defined()) continue;
        collector->AddWhole(StatePrefix(i) + name, *tensors[i], /*elsewhere=*/false);
      }
      states[name] = Hollow(*state->second);
      like[name] = name;
    }
  }
  collector->AddText(kRankHeadPrefix + std::to_string(rank), WriteHead(inner, groups, states, like),
                     /*elsewhere=*/false);
  return OkStatus();
}

Status ReadModel(const SavedShards& saved, const torch::nn::Module& module, const Named& parameters,
                 LoadedTensors* loaded) {
  std::set<std::string> known;
  for (const auto& [name, tensor] : parameters) {
    known.insert(kModelPrefix + name);
    torch::Tensor read;
    CADRE_RETURN_IF_ERROR(ReadWhole(saved, kModelPrefix + name, "parameter '" + name + "'",
                                    tensor.scalar_type(), tensor.sizes(), &read));
    loaded->emplace_back(tensor, std::move(read));
  }
  CADRE_RETURN_IF_ERROR(ReadBuffers(saved, module, loaded, &known));
  return CheckNoOthers(saved, known);
}

// The wrapped optimizer's state becomes that of this rank's share: it is the caller's to put aside
// what there was.
Status ReadOptimizer(const SavedShards& saved, const Named& parameters,
                     ShardedOptimizer& optimizer) {
  const Communicator& ranks = optimizer.communicator();
  if (saved.in_memory() && saved.ranks() != ranks.size()) {
    return InvalidArgumentError("the state in memory is that of one of " +
                                std::to_string(saved.ranks()) + " ranks, and these are " +
                                std::to_string(ranks.size()) +
                                ": it lacks what others owned; load a checkpoint's");
  }
  NamedGroups groups;
  torch::optim::Optimizer& inner = optimizer.optimizer();
  CADRE_RETURN_IF_ERROR(NameGroups(parameters, inner, &groups));
  HollowStates hollow;
  CADRE_RETURN_IF_ERROR(ReadHeads(saved, groups, inner, &hollow));
  OptimizerStates states;
  for (const auto& group : groups) {
    for (const auto& [name, tensor] : group) {
      const auto like = hollow.find(name);
      if (like == hollow.end() || optimizer.OwnerOf(tensor) != ranks.rank()) {
        continue;
      }
      std::vector<torch::Tensor*> tensors;
      CADRE_RETURN_IF_ERROR(VisibleTensors(inner, *like->second, &tensors));
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!tensors[i]->defined()) continue;
        torch::Tensor read;
        CADRE_RETURN_IF_ERROR(ReadWhole(saved, StatePrefix(i) + name,
                                        "the state of parameter '" + name + "'",
                                        tensors[i]->scalar_type(), tensor.sizes(), &read));
        *tensors[i] = read.to(tensor.device());
      }
      states[StateKey(tensor)] = std::move(like->second);
    }
  }
  inner.state() = std::move(states);
  return OkStatus();
}

}  // namespace

Result<ShardedState> ShardsOf(const torch::nn::Module& module, ShardedOptimizer& optimizer,
                              std::string extra) {
  const Communicator& ranks = optimizer.communicator();
  ShardCollector collector(ranks.rank(), ranks.size());
  const Status collected = Guarded("shards of an optimizer", [&] {
    const torch::NoGradGuard no_grad;
    return Collect(module, optimizer, &collector);
  });
  if (!collected.ok()) return Status(collected.code(), Mine(optimizer) + collected.message());
  collector.AddText(kExtraName, std::move(extra), collector.rank() > 0);
  return collector.Take();
}

Status LoadShards(torch::nn::Module& module, ShardedOptimizer& optimizer, const SavedShards& saved,
                  std::string* extra) {
  const torch::NoGradGuard no_grad;
  LoadedTensors loaded;
  std::string text;
  StateAside aside(optimizer.optimizer());
  const Named parameters = ParametersOf(module);
  const Status read = Guarded("shards of an optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(ReadModel(saved, module, parameters, &loaded));
    CADRE_RETURN_IF_ERROR(ReadText(saved, kExtraName, &text));
    CADRE_RETURN_IF_ERROR(ReadOptimizer(saved, parameters, optimizer));
    for (auto& [ours, values] : loaded) ours.copy_(values);
    return OkStatus();
  });
  if (!read.ok()) return NotRead(read, Mine(optimizer));
  aside.Keep();
  if (extra != nullptr) *extra = std::move(text);
  return OkStatus();
}

}  // namespace cadre::nn
