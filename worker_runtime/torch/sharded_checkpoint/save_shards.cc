// What a rank keeps of a sharded model and its optimizer, to be saved.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/whole_groups.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "cadre/torch/sharded_checkpoint/optimizer_head.h"
#include "cadre/torch/sharded_checkpoint/shard_collector.h"
#include "cadre/torch/sharded_checkpoint/shard_names.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

Status AddOptimizer(const FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                    ShardCollector* collector) {
  const WholeGroups whole(parts.module(), parts.flats(), optimizer);
  // One parameter's stands for those of each shard.
  HollowStates states;
  std::map<std::string, std::string> like;
  for (const FlatParameter* const flat : whole.flats()) {
    const auto state = optimizer.state().find(StateKey(flat->shard()));
    if (state == optimizer.state().end()) continue;
    const std::string& first = flat->members().front().name;
    states[first] = Hollow(*state->second);
    for (const FlatMember& member : flat->members()) like[member.name] = first;
    std::vector<torch::Tensor*> tensors;
    CADRE_RETURN_IF_ERROR(VisibleTensors(optimizer, *state->second, &tensors));
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]->defined()) collector->AddMembers(*flat, *tensors[i], StatePrefix(i));
    }
  }
  collector->AddText(kHeadName, WriteHead(optimizer, whole.Named(), states, like),
                     collector->rank() > 0);
  return OkStatus();
}

}  // namespace

Result<ShardedState> ShardsOf(FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                              std::string extra) {
  CADRE_RETURN_IF_ERROR(parts.units().failure());
  CADRE_RETURN_IF_ERROR(parts.CheckOptimizer(optimizer));
  const RankRoute& within = parts.units().route().parts;
  const RankRoute& across = parts.units().route().replicas;
  const int replica = across.alone() ? 0 : across.host->rank();
  const int replicas = across.alone() ? 1 : across.host->size();
  ShardCollector collector(replica * within.host->size() + within.host->rank(),
                           replicas * within.host->size(), replica);
  CADRE_RETURN_IF_ERROR(Guarded("shards of a sharded model", [&]() -> Status {
    const torch::NoGradGuard no_grad;
    for (const FlatParameter* const flat : parts.flats()) {
      collector.AddMembers(*flat, flat->shard(), kModelPrefix);
    }
    collector.AddBuffers(parts.module());
    return AddOptimizer(parts, optimizer, &collector);
  }));
  collector.AddText(kExtraName, std::move(extra), collector.rank() > 0);
  return collector.Take();
}

}  // namespace cadre::nn
