// What a rank keeps of a sharded model and its optimizer, read again.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/whole_groups.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "cadre/torch/sharded_checkpoint/optimizer_head.h"
#include "cadre/torch/sharded_checkpoint/shard_names.h"
#include "cadre/torch/sharded_checkpoint/shard_reading.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// This rank's part of the tensors with that prefix, on the host.
Status ReadMembers(const SavedShards& saved, const FlatParameter& flat, const std::string& prefix,
                   torch::Tensor* own) {
  const torch::Tensor& shard = flat.shard();
  *own = torch::zeros({shard.numel()}, torch::dtype(shard.scalar_type()));
  auto* const bytes = static_cast<char*>(own->data_ptr());
  for (size_t m = 0; m < flat.members().size(); ++m) {
    const FlatMember& member = flat.members()[m];
    const FlatParameter::OwnRange range = flat.OwnRangeOf(m);
    // In memory there is nothing of a parameter of which this rank keeps nothing.
    if (range.count == 0 && saved.in_memory()) continue;
    CADRE_RETURN_IF_ERROR(CheckTensor(saved, prefix + member.name,
                                      "parameter '" + member.name + "'", shard.scalar_type(),
                                      member.shape));
    if (range.count == 0) continue;
    CADRE_RETURN_IF_ERROR(saved.Read(prefix + member.name, range.begin, range.count,
                                     bytes + static_cast<size_t>(range.at) * own->element_size()));
  }
  return OkStatus();
}

// What is loaded, before anything of the model's is changed.
struct LoadedModel {
  // In the order of the flat parameters.
  std::vector<torch::Tensor> shards;
  LoadedTensors buffers;
};

Status ReadModel(const SavedShards& saved, const FullyShardedParts& parts, LoadedModel* loaded) {
  std::set<std::string> known;
  for (const FlatParameter* const flat : parts.flats()) {
    CADRE_RETURN_IF_ERROR(ReadMembers(saved, *flat, kModelPrefix, &loaded->shards.emplace_back()));
    for (const FlatMember& member : flat->members()) known.insert(kModelPrefix + member.name);
  }
  CADRE_RETURN_IF_ERROR(ReadBuffers(saved, parts.module(), &loaded->buffers, &known));
  return CheckNoOthers(saved, known);
}

// The optimizer's state becomes what was saved: it is the caller's to put aside what there was.
Status ReadOptimizer(const SavedShards& saved, const FullyShardedParts& parts,
                     torch::optim::Optimizer& optimizer) {
  const WholeGroups whole(parts.module(), parts.flats(), optimizer);
  HollowStates hollow;
  CADRE_RETURN_IF_ERROR(ReadHeads(saved, whole.Named(), optimizer, &hollow));
  OptimizerStates states;
  for (const FlatParameter* const flat : whole.flats()) {
    // Of the first parameter that has one.
    const auto like =
        std::find_if(flat->members().begin(), flat->members().end(),
                     [&](const FlatMember& member) { return hollow.count(member.name) > 0; });
    if (like == flat->members().end()) continue;
    auto own = hollow.at(like->name)->clone();
    std::vector<torch::Tensor*> tensors;
    CADRE_RETURN_IF_ERROR(VisibleTensors(optimizer, *own, &tensors));
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]->defined()) continue;
      CADRE_RETURN_IF_ERROR(ReadMembers(saved, *flat, StatePrefix(i), tensors[i]));
      *tensors[i] = tensors[i]->to(flat->shard().device());
    }
    states[StateKey(flat->shard())] = std::move(own);
  }
  optimizer.state() = std::move(states);
  return OkStatus();
}

}  // namespace

Status LoadShards(FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                  const SavedShards& saved, std::string* extra) {
  FullyShardedUnits& units = parts.units();
  CADRE_RETURN_IF_ERROR(units.failure());
  CADRE_RETURN_IF_ERROR(parts.CheckOptimizer(optimizer));
  const torch::NoGradGuard no_grad;
  LoadedModel loaded;
  std::string text;
  StateAside aside(optimizer);
  const Status read = Guarded("shards of a sharded model", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(ReadModel(saved, parts, &loaded));
    CADRE_RETURN_IF_ERROR(ReadText(saved, kExtraName, &text));
    return ReadOptimizer(saved, parts, optimizer);
  });
  if (!read.ok()) return NotRead(read, units.Mine());
  CADRE_RETURN_IF_ERROR(units.ReleaseAll(/*keep=*/false));
  CADRE_RETURN_IF_ERROR(units.Fail(Guarded("shards of a sharded model", [&] {
    for (auto& [ours, values] : loaded.buffers) ours.copy_(values);
    for (size_t f = 0; f < loaded.shards.size(); ++f) {
      parts.flats()[f]->shard().detach().copy_(loaded.shards[f]);
    }
    return OkStatus();
  })));
  aside.Keep();
  if (extra != nullptr) *extra = std::move(text);
  return OkStatus();
}

}  // namespace cadre::nn
