#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded.h"
#include "torch/utils.h"
#include "worker_runtime/torch/fully_sharded/whole_groups.h"
#include "worker_runtime/torch/gradient_checks.h"
#include "worker_runtime/torch/guarded.h"
#include "worker_runtime/torch/optimizer_state.h"

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
      "this step is without gradients of all ranks: call Finish() after a backward pass outside of "
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

// Saves and loads the full state of a model whose parameters are sharded.

namespace {

// Keyed by the tensor's implementation, so that a parameter that is registered twice counts once.
using Values = std::map<const void*, torch::Tensor>;

// Writes what torch::nn::Module::save() does, with other values for the parameters.
void Write(const torch::nn::Module& module, const Values& values,
           torch::serialize::OutputArchive& archive) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    const auto value = values.find(parameter.value().unsafeGetTensorImpl());
    archive.write(parameter.key(), value == values.end() ? parameter.value() : value->second);
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    archive.write(buffer.key(), buffer.value().cpu(), /*is_buffer=*/true);
  }
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    torch::serialize::OutputArchive part(archive.compilation_unit());
    Write(*child.value(), values, part);
    archive.write(child.key(), part);
  }
}

using Visit = std::function<Status(const std::string& name, const torch::Tensor& ours,
                                   const torch::Tensor& saved, bool is_buffer)>;

// Calls `visit` with each parameter and buffer and its value in the archive, which may be
// undefined.
Status Read(const torch::nn::Module& module, const std::string& prefix,
            torch::serialize::InputArchive& archive, const Visit& visit) {
  const auto read = [&](const auto& list, bool is_buffer) -> Status {
    for (const auto& item : list) {
      if (!item.value().defined()) continue;
      torch::Tensor saved;
      if (!archive.try_read(item.key(), saved, is_buffer)) saved = torch::Tensor();
      CADRE_RETURN_IF_ERROR(visit(prefix + item.key(), item.value(), saved, is_buffer));
    }
    return OkStatus();
  };
  CADRE_RETURN_IF_ERROR(read(module.named_parameters(/*recurse=*/false), false));
  CADRE_RETURN_IF_ERROR(read(module.named_buffers(/*recurse=*/false), true));
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    torch::serialize::InputArchive part;
    // If the archive lacks the child, `part` stays empty and every tensor of it counts as missing.
    (void)archive.try_read(child.key(), part);
    CADRE_RETURN_IF_ERROR(Read(*child.value(), prefix + child.key() + ".", part, visit));
  }
  return OkStatus();
}

}  // namespace

Status FullyShardedParts::CheckRecipient(int recipient) const {
  CADRE_RETURN_IF_ERROR(CheckSameOptions(communicator_,
                                         {{"recipient of the state", std::to_string(recipient)}},
                                         units_.route().timeout));
  if (recipient >= 0 && recipient < communicator_.size()) return OkStatus();
  return InvalidArgumentError("the state was to go to rank " + std::to_string(recipient) +
                              ", but ranks are 0 to " + std::to_string(communicator_.size() - 1));
}

Status FullyShardedParts::SaveState(torch::serialize::OutputArchive& archive, int recipient) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  CADRE_RETURN_IF_ERROR(CheckRecipient(recipient));
  if (!units_.saves_state()) return OkStatus();
  return units_.Fail(Guarded("state of a sharded model", [&]() -> Status {
    Values values;
    for (FlatParameter* const flat : flats_) {
      torch::Tensor whole;
      CADRE_RETURN_IF_ERROR(flat->GatherOnHost(flat->shard(), &whole));
      if (communicator_.rank() != recipient) continue;
      for (size_t m = 0; m < flat->members().size(); ++m) {
        const torch::Tensor& parameter = flat->members()[m].tensor;
        torch::Tensor value = flat->MemberOf(whole, m).clone();
        value.set_requires_grad(parameter.requires_grad());
        values[parameter.unsafeGetTensorImpl()] = std::move(value);
      }
    }
    if (communicator_.rank() == recipient) Write(*module_, values, archive);
    return OkStatus();
  }));
}

Status FullyShardedParts::LoadState(torch::serialize::InputArchive& archive) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  const torch::NoGradGuard no_grad;
  std::map<const void*, std::vector<int64_t>> shapes;
  for (const FlatParameter* const flat : flats_) {
    for (const FlatMember& member : flat->members()) {
      shapes[member.tensor.unsafeGetTensorImpl()] = member.shape;
    }
  }
  Values values;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;
  const auto check = [&](const std::string& name, const torch::Tensor& ours,
                         const torch::Tensor& saved, bool is_buffer) -> Status {
    const auto shape = shapes.find(ours.unsafeGetTensorImpl());
    const torch::IntArrayRef wanted =
        shape == shapes.end() ? ours.sizes() : torch::IntArrayRef(shape->second);
    if (!saved.defined() || saved.sizes() != wanted) {
      std::ostringstream text;
      text << units_.Mine() << "the state is of another model: '" << name << "' is " << wanted
           << " in this one, and ";
      if (saved.defined()) {
        text << saved.sizes() << " there";
      } else {
        text << "missing there";
      }
      return InvalidArgumentError(text.str());
    }
    if (is_buffer) {
      buffers.emplace_back(ours, saved);
    } else {
      values[ours.unsafeGetTensorImpl()] = saved.detach();
    }
    return OkStatus();
  };
  const Status read =
      Guarded("state of a sharded model", [&] { return Read(*module_, "", archive, check); });
  if (read.code() == StatusCode::kInternal) {
    return InvalidArgumentError(units_.Mine() + read.message());
  }
  CADRE_RETURN_IF_ERROR(read);
  CADRE_RETURN_IF_ERROR(units_.ReleaseAll(/*keep=*/false));
  return units_.Fail(Guarded("state of a sharded model", [&] {
    for (auto& [ours, saved] : buffers) ours.copy_(saved);
    for (const FlatParameter* const flat : flats_) {
      torch::Tensor whole =
          torch::zeros({flat->count()}, torch::dtype(flat->shard().scalar_type()));
      for (size_t m = 0; m < flat->members().size(); ++m) {
        const void* const parameter = flat->members()[m].tensor.unsafeGetTensorImpl();
        flat->MemberOf(whole, m).copy_(values.at(parameter));
      }
      flat->shard().detach().copy_(flat->OwnPartOf(whole));
    }
    return OkStatus();
  }));
}

// Saves and loads the full state of an optimizer over shards.

namespace {

using torch::optim::OptimizerParamState;

Status UnknownOptimizerError(const torch::optim::Optimizer& optimizer) {
  return UnimplementedError("the state of " + KindOf(optimizer) + " does not show its tensors");
}

// Collective: adds the full state of a shard, for each member, to `states`.
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

// Cuts this rank's part out of the members' states; null if none has a state. Fails with
// INVALID_ARGUMENT, naming the parameter, if a state has another shape, and with UNIMPLEMENTED if a
// state does not expose its tensors.
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
      if (gathered.code() == StatusCode::kUnimplemented) return UnknownOptimizerError(optimizer);
      CADRE_RETURN_IF_ERROR(gathered);
    }
    if (!receives) return OkStatus();
    const StateAside aside(optimizer);
    optimizer.state() = std::move(states);
    const OtherParameters over_the_whole(optimizer, GroupParameters(whole.Named()));
    optimizer.save(archive);
    WriteOptimizerIdentity(archive, KindOf(optimizer), GroupNames(whole.Named()));
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
    CADRE_RETURN_IF_ERROR(
        CheckOptimizerIdentity(archive, KindOf(optimizer), GroupNames(whole.Named())));
    {
      const OtherParameters over_the_whole(optimizer, GroupParameters(whole.Named()));
      optimizer.load(archive);
    }
    OptimizerStates cut;
    for (const FlatParameter* const flat : whole.flats()) {
      std::unique_ptr<OptimizerParamState> own;
      const Status status = CutState(*flat, optimizer.state(), &own);
      if (status.code() == StatusCode::kUnimplemented) return UnknownOptimizerError(optimizer);
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
