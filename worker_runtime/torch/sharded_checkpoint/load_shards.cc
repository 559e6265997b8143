// What a rank keeps of a sharded model and its optimizer, read again.
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "cadre/torch/shard_names.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "cadre/torch/whole_groups.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

Status CheckTensor(const SavedShards& saved, const std::string& name, const std::string& shown,
                   torch::ScalarType type, torch::IntArrayRef shape) {
  const ShardedTensor* const tensor = saved.Find(name);
  // Nobody keeps anything of a tensor without elements.
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

Status ReadText(const SavedShards& saved, const std::string& name, std::string* text) {
  const ShardedTensor* const tensor = saved.Find(name);
  // A text without letters has no elements.
  text->assign(tensor == nullptr ? 0 : static_cast<size_t>(tensor->shape.at(0)), '\0');
  if (text->empty()) return OkStatus();
  return saved.Read(name, 0, static_cast<int64_t>(text->size()), &(*text)[0]);
}

// What is loaded, before anything of the model's is changed.
struct LoadedModel {
  // In the order of the flat parameters, and of the module's buffers.
  std::vector<torch::Tensor> shards;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;
};

Status ReadModel(const SavedShards& saved, const FullyShardedParts& parts, LoadedModel* loaded) {
  std::set<std::string> known;
  for (const FlatParameter* const flat : parts.flats()) {
    CADRE_RETURN_IF_ERROR(ReadMembers(saved, *flat, kModelPrefix, &loaded->shards.emplace_back()));
    for (const FlatMember& member : flat->members()) known.insert(kModelPrefix + member.name);
  }
  for (const auto& buffer : parts.module().named_buffers()) {
    const torch::Tensor& ours = buffer.value();
    if (!ours.defined()) continue;
    const std::string name = kBufferPrefix + buffer.key();
    known.insert(name);
    CADRE_RETURN_IF_ERROR(CheckTensor(saved, name, "buffer '" + buffer.key() + "'",
                                      ours.scalar_type(), ours.sizes()));
    torch::Tensor read = torch::empty(ours.sizes(), torch::dtype(ours.scalar_type()));
    if (read.numel() > 0) {
      CADRE_RETURN_IF_ERROR(saved.Read(name, 0, read.numel(), read.data_ptr()));
    }
    loaded->buffers.emplace_back(ours, std::move(read));
  }
  for (const std::string& name : saved.names()) {
    const bool ours = name.rfind(kModelPrefix, 0) == 0 || name.rfind(kBufferPrefix, 0) == 0;
    if (!ours || known.count(name) > 0) continue;
    return InvalidArgumentError("the state is of another model: it has '" +
                                name.substr(name.find('.') + 1) + "', and this model has not");
  }
  return OkStatus();
}

// For each parameter the state whose steps it has, by the archive.
class HollowStates {
 public:
  HollowStates(const WholeGroups& whole, torch::optim::Optimizer& optimizer,
               torch::serialize::InputArchive& archive) {
    std::map<std::string, torch::Tensor> parameters;
    for (const FlatParameter* const flat : whole.flats()) {
      for (const FlatMember& member : flat->members()) parameters[member.name] = member.tensor;
    }
    torch::IValue value;
    archive.read(kLikeKey, value);
    const auto like = value.toListRef();
    const std::vector<std::string> names = whole.Names();
    for (size_t i = 0; i < names.size() && i < like.size(); ++i) {
      const auto parameter = parameters.find(like[i].toStringRef());
      if (parameter == parameters.end()) continue;
      const auto state = optimizer.state().find(StateKey(parameter->second));
      if (state != optimizer.state().end()) states_[names[i]] = state->second.get();
    }
  }

  // Of the first parameter that has one; null: none has.
  const torch::optim::OptimizerParamState* Of(const FlatParameter& flat) const {
    for (const FlatMember& member : flat.members()) {
      const auto state = states_.find(member.name);
      if (state != states_.end()) return state->second;
    }
    return nullptr;
  }

 private:
  std::map<std::string, const torch::optim::OptimizerParamState*> states_;
};

// The optimizer's state becomes what was saved: it is the caller's to put aside what there was.
Status ReadOptimizer(const SavedShards& saved, const FullyShardedParts& parts,
                     torch::optim::Optimizer& optimizer) {
  const WholeGroups whole(parts.module(), parts.flats(), optimizer);
  std::string head;
  CADRE_RETURN_IF_ERROR(ReadText(saved, kHeadName, &head));
  torch::serialize::InputArchive archive;
  archive.load_from(head.data(), head.size(), torch::Device(torch::kCPU));
  CADRE_RETURN_IF_ERROR(CheckWhose(archive, KindOf(optimizer), whole.Names()));
  {
    const OtherParameters over_the_whole(optimizer, whole.Parameters());
    optimizer.load(archive);
  }
  const HollowStates hollow(whole, optimizer, archive);
  OptimizerStates states;
  for (const FlatParameter* const flat : whole.flats()) {
    const torch::optim::OptimizerParamState* const like = hollow.Of(*flat);
    if (like == nullptr) continue;
    auto own = like->clone();
    std::vector<torch::Tensor*> tensors;
    if (!TensorsOf(*own, &tensors)) {
      return UnimplementedError("the state of " + KindOf(optimizer) + " does not show its tensors");
    }
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
  if (!read.ok()) {
    // Of libtorch's exceptions, too: what it cannot read is another state.
    const bool other = read.code() == StatusCode::kInternal;
    return Status(other ? StatusCode::kInvalidArgument : read.code(),
                  units.Mine() + read.message());
  }
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
