// The whole state of an optimizer over shards.
#include <string>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/fully_sharded_parts.h"
#include "cadre/torch/fully_sharded/whole_groups.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using torch::optim::OptimizerParamState;

Status NotOurs(const torch::optim::Optimizer& optimizer) {
  return UnimplementedError("the state of " + KindOf(optimizer) + " does not show its tensors");
}

// Collective: adds the whole of a shard's state, for each member, to `states`.
Status GatherState(FlatParameter& flat, OptimizerParamState& state, bool receives,
                   OptimizerStates* states) {
  std::vector<torch::Tensor*> own;
  if (!TensorsOf(state, &own)) return UnimplementedError("");
  std::vector<torch::Tensor> wholes(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i]->defined()) CADRE_RETURN_IF_ERROR(flat.GatherOnHost(*own[i], &wholes[i]));
  }
  for (size_t m = 0; receives && m < flat.members().size(); ++m) {
    auto whole = state.clone();
    std::vector<torch::Tensor*> tensors;
    (void)TensorsOf(*whole, &tensors);
    for (size_t i = 0; i < wholes.size(); ++i) {
      if (wholes[i].defined()) *tensors[i] = flat.MemberOf(wholes[i], m).clone();
    }
    (*states)[StateKey(flat.members()[m].tensor)] = std::move(whole);
  }
  return OkStatus();
}

// This rank's part of the members' states; null: none has one. INVALID_ARGUMENT, naming the
// parameter: a state has another shape. UNIMPLEMENTED: it does not show its tensors.
Status CutState(const FlatParameter& flat, const OptimizerStates& states,
                std::unique_ptr<OptimizerParamState>* cut) {
  std::vector<torch::Tensor> wholes;
  for (size_t m = 0; m < flat.members().size(); ++m) {
    const FlatMember& member = flat.members()[m];
    const auto state = states.find(StateKey(member.tensor));
    if (state == states.end()) continue;
    if (*cut == nullptr) *cut = state->second->clone();
    std::vector<torch::Tensor*> tensors;
    if (!TensorsOf(*state->second, &tensors)) return UnimplementedError("");
    CADRE_RETURN_IF_ERROR(CheckShapes(*state->second, member.name, member.shape));
    wholes.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]->defined()) continue;
      if (!wholes[i].defined()) {
        wholes[i] = torch::zeros({flat.count()}, torch::dtype(tensors[i]->scalar_type()));
      }
      flat.MemberOf(wholes[i], m).copy_(*tensors[i]);
    }
  }
  if (*cut == nullptr) return OkStatus();
  std::vector<torch::Tensor*> own;
  (void)TensorsOf(**cut, &own);
  for (size_t i = 0; i < own.size(); ++i) {
    if (!wholes[i].defined()) continue;
    *own[i] = flat.OwnPartOf(wholes[i]).clone().to(flat.shard().device());
  }
  return OkStatus();
}

}  // namespace

Status FullyShardedParts::SaveOptimizerState(torch::optim::Optimizer& optimizer,
                                             torch::serialize::OutputArchive& archive,
                                             int recipient) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  CADRE_RETURN_IF_ERROR(CheckRecipient(recipient));
  return units_.Fail(Guarded("state of a sharded model's optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckOptimizer(optimizer));
    if (!units_.saves_state()) return OkStatus();
    const torch::NoGradGuard no_grad;
    const bool receives = communicator_.rank() == recipient;
    const WholeGroups whole(*module_, flats_, optimizer);
    OptimizerStates states;
    for (FlatParameter* const flat : whole.flats()) {
      const auto state = optimizer.state().find(StateKey(flat->shard()));
      if (state == optimizer.state().end()) continue;
      const Status gathered = GatherState(*flat, *state->second, receives, &states);
      if (gathered.code() == StatusCode::kUnimplemented) return NotOurs(optimizer);
      CADRE_RETURN_IF_ERROR(gathered);
    }
    if (!receives) return OkStatus();
    const StateAside aside(optimizer);
    optimizer.state() = std::move(states);
    const OtherParameters over_the_whole(optimizer, GroupParameters(whole.Named()));
    optimizer.save(archive);
    WriteWhose(archive, KindOf(optimizer), GroupNames(whole.Named()));
    return OkStatus();
  }));
}

Status FullyShardedParts::LoadOptimizerState(torch::optim::Optimizer& optimizer,
                                             torch::serialize::InputArchive& archive) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  CADRE_RETURN_IF_ERROR(CheckOptimizer(optimizer));
  const torch::NoGradGuard no_grad;
  const WholeGroups whole(*module_, flats_, optimizer);
  StateAside aside(optimizer);
  const Status loaded = Guarded("state of a sharded model's optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckWhose(archive, KindOf(optimizer), GroupNames(whole.Named())));
    {
      const OtherParameters over_the_whole(optimizer, GroupParameters(whole.Named()));
      optimizer.load(archive);
    }
    OptimizerStates cut;
    for (const FlatParameter* const flat : whole.flats()) {
      std::unique_ptr<OptimizerParamState> own;
      const Status status = CutState(*flat, optimizer.state(), &own);
      if (status.code() == StatusCode::kUnimplemented) return NotOurs(optimizer);
      CADRE_RETURN_IF_ERROR(status);
      if (own != nullptr) cut[StateKey(flat->shard())] = std::move(own);
    }
    optimizer.state() = std::move(cut);
    return OkStatus();
  });
  if (loaded.code() == StatusCode::kInternal || loaded.code() == StatusCode::kInvalidArgument) {
    return InvalidArgumentError(units_.Mine() + loaded.message());
  }
  CADRE_RETURN_IF_ERROR(loaded);
  aside.Keep();
  return OkStatus();
}

}  // namespace cadre::nn
