// Saves and loads the shards that a rank keeps of a sharded model and its optimizer: stage 3 first,
// then models of which only the optimizer is sharded.
#include "cadre/torch/sharded_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "torch/serialize.h"
#include "torch/utils.h"
#include "worker_runtime/torch/fully_sharded/whole_groups.h"
#include "worker_runtime/torch/guarded.h"
#include "worker_runtime/torch/optimizer_state.h"
#include "worker_runtime/torch/sharded_checkpoint/checkpoint_contents.h"

namespace cadre::nn {
namespace {

Status AddOptimizer(const FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                    ShardCollector* collector) {
  const WholeGroups whole(parts.module(), parts.flats(), optimizer);
  // The state of one parameter stands for those of each shard.
  StatesWithoutTensors states;
  std::map<std::string, std::string> like;
  for (const FlatParameter* const flat : whole.flats()) {
    const auto state = optimizer.state().find(StateKey(flat->shard()));
    if (state == optimizer.state().end()) continue;
    const std::string& first = flat->members().front().name;
    states[first] = WithoutTensors(*state->second);
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

// Loads the shards that a rank keeps of a sharded model and its optimizer.

namespace {

// Reads this rank's part of the tensors with that prefix, onto the host.
Status ReadMembers(const SavedShards& saved, const FlatParameter& flat, const std::string& prefix,
                   torch::Tensor* own) {
  const torch::Tensor& shard = flat.shard();
  *own = torch::zeros({shard.numel()}, torch::dtype(shard.scalar_type()));
  auto* const bytes = static_cast<char*>(own->data_ptr());
  for (size_t m = 0; m < flat.members().size(); ++m) {
    const FlatMember& member = flat.members()[m];
    const FlatParameter::OwnRange range = flat.OwnRangeOf(m);
    // Checkpoints in memory have no entry for a parameter of which this rank keeps nothing.
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

// The loaded values, before anything of the model is changed.
struct LoadedModel {
  // The shards are in the order of the flat parameters.
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

// Replaces the optimizer's state by the saved one; the caller puts the old state aside.
Status ReadOptimizer(const SavedShards& saved, const FullyShardedParts& parts,
                     torch::optim::Optimizer& optimizer) {
  const WholeGroups whole(parts.module(), parts.flats(), optimizer);
  StatesWithoutTensors hollow;
  CADRE_RETURN_IF_ERROR(ReadHeads(saved, whole.Named(), optimizer, &hollow));
  OptimizerStates states;
  for (const FlatParameter* const flat : whole.flats()) {
    // The state of the first parameter that has one.
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

Status CheckTensor(const SavedShards& saved, const std::string& name, const std::string& shown,
                   torch::ScalarType type, torch::IntArrayRef shape) {
  const ShardedTensor* const tensor = saved.Find(name);
  if (tensor == nullptr && c10::multiply_integers(shape) == 0) return OkStatus();
  if (tensor != nullptr && tensor->type == torch::toString(type) && tensor->shape == shape.vec()) {
    return OkStatus();
  }
  std::ostringstream text;
  text << "the state is of another model: " << shown << " is " << torch::toString(type) << " "
       << shape << " in this one, and ";
  if (tensor == nullptr) {
    text << "missing there";
  } else {
    text << tensor->type << " " << torch::IntArrayRef(tensor->shape) << " there";
  }
  return InvalidArgumentError(text.str());
}

Status ReadWhole(const SavedShards& saved, const std::string& name, const std::string& shown,
                 torch::ScalarType type, torch::IntArrayRef shape, torch::Tensor* read) {
  CADRE_RETURN_IF_ERROR(CheckTensor(saved, name, shown, type, shape));
  *read = torch::empty(shape, torch::dtype(type));
  return read->numel() == 0 ? OkStatus() : saved.Read(name, 0, read->numel(), read->data_ptr());
}

Status ReadText(const SavedShards& saved, const std::string& name, std::string* text) {
  const ShardedTensor* const tensor = saved.Find(name);
  // An empty text has no elements to read.
  text->assign(tensor == nullptr ? 0 : static_cast<size_t>(tensor->shape.at(0)), '\0');
  if (text->empty()) return OkStatus();
  return saved.Read(name, 0, static_cast<int64_t>(text->size()), &(*text)[0]);
}

Status ReadBuffers(const SavedShards& saved, const torch::nn::Module& module, LoadedTensors* loaded,
                   std::set<std::string>* known) {
  for (const auto& buffer : module.named_buffers()) {
    const torch::Tensor& ours = buffer.value();
    if (!ours.defined()) continue;
    const std::string name = kBufferPrefix + buffer.key();
    known->insert(name);
    torch::Tensor read;
    CADRE_RETURN_IF_ERROR(ReadWhole(saved, name, "buffer '" + buffer.key() + "'",
                                    ours.scalar_type(), ours.sizes(), &read));
    loaded->emplace_back(ours, std::move(read));
  }
  return OkStatus();
}

Status CheckNoOthers(const SavedShards& saved, const std::set<std::string>& known) {
  for (const std::string& name : saved.names()) {
    const bool ours = name.rfind(kModelPrefix, 0) == 0 || name.rfind(kBufferPrefix, 0) == 0;
    if (!ours || known.count(name) > 0) continue;
    return InvalidArgumentError("the state is of another model: it has '" +
                                name.substr(name.find('.') + 1) + "', and this model has not");
  }
  return OkStatus();
}

Status NotRead(const Status& status, const std::string& who) {
  const bool other = status.code() == StatusCode::kInternal;
  return Status(other ? StatusCode::kInvalidArgument : status.code(), who + status.message());
}

// Saves and loads what a rank keeps of a model whose optimizer is sharded.

namespace {

using Named = std::vector<std::pair<std::string, torch::Tensor>>;

// Returns each parameter once, under its first name.
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

// Fails with INVALID_ARGUMENT if the module is not the one whose parameters the optimizer has.
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
    // A tensor without an owner in the optimizer is the same on all ranks, so rank 0 saves it.
    const int owner = std::max(optimizer.OwnerOf(tensor), 0);
    collector->AddWhole(kModelPrefix + name, tensor, owner != rank);
  }
  collector->AddBuffers(module);
  NamedGroups groups;
  torch::optim::Optimizer& inner = optimizer.optimizer();
  CADRE_RETURN_IF_ERROR(NameGroups(parameters, inner, &groups));
  StatesWithoutTensors states;
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
      states[name] = WithoutTensors(*state->second);
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

// Replaces the wrapped optimizer's state by this rank's saved share; the caller puts the old state
// aside.
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
  StatesWithoutTensors hollow;
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

namespace {

std::map<std::string, torch::Tensor> ParametersByName(const NamedGroups& groups) {
  std::map<std::string, torch::Tensor> parameters;
  for (const auto& group : groups) parameters.insert(group.begin(), group.end());
  return parameters;
}

Status ReadHead(const SavedShards& saved, const std::string& name, const NamedGroups& groups,
                torch::optim::Optimizer& optimizer, StatesWithoutTensors* states) {
  std::string head;
  CADRE_RETURN_IF_ERROR(ReadText(saved, name, &head));
  torch::serialize::InputArchive archive;
  archive.load_from(head.data(), head.size(), torch::Device(torch::kCPU));
  const std::vector<std::string> names = GroupNames(groups);
  CADRE_RETURN_IF_ERROR(CheckOptimizerIdentity(archive, KindOf(optimizer), names));
  {
    const OtherParameters over_all(optimizer, GroupParameters(groups));
    optimizer.load(archive);
  }
  const auto parameters = ParametersByName(groups);
  torch::IValue value;
  archive.read(kLikeKey, value);
  const auto like = value.toListRef();
  for (size_t i = 0; i < names.size() && i < like.size(); ++i) {
    const auto parameter = parameters.find(like[i].toStringRef());
    if (parameter == parameters.end()) continue;
    const auto state = optimizer.state().find(StateKey(parameter->second));
    if (state != optimizer.state().end()) (*states)[names[i]] = state->second->clone();
  }
  return OkStatus();
}

}  // namespace

Status VisibleTensors(const torch::optim::Optimizer& optimizer,
                      torch::optim::OptimizerParamState& state,
                      std::vector<torch::Tensor*>* tensors) {
  if (TensorsOf(state, tensors)) return OkStatus();
  return UnimplementedError("the state of " + KindOf(optimizer) + " does not show its tensors");
}

std::unique_ptr<torch::optim::OptimizerParamState> WithoutTensors(
    const torch::optim::OptimizerParamState& state) {
  auto hollow = state.clone();
  std::vector<torch::Tensor*> tensors;
  (void)TensorsOf(*hollow, &tensors);
  for (torch::Tensor* const tensor : tensors) {
    if (tensor->defined()) *tensor = torch::empty({0}, torch::dtype(tensor->scalar_type()));
  }
  return hollow;
}

std::string WriteHead(torch::optim::Optimizer& optimizer, const NamedGroups& groups,
                      const StatesWithoutTensors& states,
                      const std::map<std::string, std::string>& like) {
  const auto parameters = ParametersByName(groups);
  OptimizerStates by_parameter;
  for (const auto& [name, state] : states) {
    by_parameter[StateKey(parameters.at(name))] = state->clone();
  }
  c10::List<std::string> list;
  const std::vector<std::string> names = GroupNames(groups);
  for (const std::string& name : names) {
    const auto found = like.find(name);
    list.push_back(found == like.end() ? std::string() : found->second);
  }
  const StateAside aside(optimizer);
  optimizer.state() = std::move(by_parameter);
  const OtherParameters over_all(optimizer, GroupParameters(groups));
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  WriteOptimizerIdentity(archive, KindOf(optimizer), names);
  archive.write(kLikeKey, torch::IValue(list));
  std::string bytes;
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  return bytes;
}

Status ReadHeads(const SavedShards& saved, const NamedGroups& groups,
                 torch::optim::Optimizer& optimizer, StatesWithoutTensors* states) {
  bool found = false;
  for (const std::string& name : saved.names()) {
    if (name != kHeadName && name.rfind(kRankHeadPrefix, 0) != 0) continue;
    found = true;
    CADRE_RETURN_IF_ERROR(ReadHead(saved, name, groups, optimizer, states));
  }
  return found ? OkStatus()
               : InvalidArgumentError("the state that was saved has no optimizer in it");
}

}  // namespace cadre::nn
