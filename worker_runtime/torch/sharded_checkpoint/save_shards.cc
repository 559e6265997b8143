// What a rank keeps of a sharded model and its optimizer, to be saved.
#include <map>
#include <memory>
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

// Collects ranges, and keeps alive what they point to.
class ShardCollector {
 public:
  explicit ShardCollector(const ShardRoute& route)
      : replica_(route.replicas.alone() ? 0 : route.replicas.host->rank()),
        state_(replica_ * route.parts.host->size() + route.parts.host->rank(),
               (route.replicas.alone() ? 1 : route.replicas.host->size()) *
                   route.parts.host->size()) {}

  // What `own`, a tensor of the shard's size, has of the members.
  void AddMembers(const FlatParameter& flat, const torch::Tensor& own, const std::string& prefix) {
    const auto held = OnHost(own);
    for (size_t m = 0; m < flat.members().size(); ++m) {
      const FlatMember& member = flat.members()[m];
      const FlatParameter::OwnRange range = flat.OwnRangeOf(m);
      Add(TensorOf(prefix + member.name, own, member.shape), range.begin, range.count, range.at,
          held, /*elsewhere=*/replica_ > 0);
    }
  }
  void AddWhole(const std::string& name, const torch::Tensor& tensor) {
    Add(TensorOf(name, tensor, tensor.sizes().vec()), 0, tensor.numel(), 0, OnHost(tensor),
        /*elsewhere=*/state_.rank() > 0);
  }
  void AddText(const std::string& name, std::string text) {
    const auto held = std::make_shared<const std::string>(std::move(text));
    const auto size = static_cast<int64_t>(held->size());
    state_.Add({{name, kTextType, 1, {size}}, 0, size, held->data(), state_.rank() > 0}, held);
  }
  ShardedState Take() { return std::move(state_); }

 private:
  static std::shared_ptr<const torch::Tensor> OnHost(const torch::Tensor& tensor) {
    return std::make_shared<const torch::Tensor>(tensor.detach().cpu().contiguous());
  }
  static ShardedTensor TensorOf(const std::string& name, const torch::Tensor& like,
                                const std::vector<int64_t>& shape) {
    return {name, torch::toString(like.scalar_type()), static_cast<size_t>(like.element_size()),
            shape};
  }
  void Add(ShardedTensor tensor, int64_t begin, int64_t count, int64_t at,
           const std::shared_ptr<const torch::Tensor>& held, bool elsewhere) {
    const auto* const bytes = static_cast<const char*>(held->data_ptr());
    const size_t offset = static_cast<size_t>(at) * tensor.element_bytes;
    state_.Add({std::move(tensor), begin, count, bytes + offset, elsewhere}, held);
  }

  // In hybrid sharding; a file gets what the first one has.
  const int replica_;
  ShardedState state_;
};

// The shard's state without the content of its tensors.
std::unique_ptr<torch::optim::OptimizerParamState> Hollow(
    const torch::optim::OptimizerParamState& state) {
  auto hollow = state.clone();
  std::vector<torch::Tensor*> tensors;
  (void)TensorsOf(*hollow, &tensors);
  for (torch::Tensor* const tensor : tensors) {
    if (tensor->defined()) *tensor = torch::empty({0}, torch::dtype(tensor->scalar_type()));
  }
  return hollow;
}

// All but the tensors' content: as the save() of an optimizer over whole parameters, with a state
// for one parameter of each shard, and which one stands for each.
std::string HeadOf(const WholeGroups& whole, torch::optim::Optimizer& optimizer) {
  OptimizerStates states;
  std::map<std::string, std::string> like;
  for (const FlatParameter* const flat : whole.flats()) {
    const auto state = optimizer.state().find(StateKey(flat->shard()));
    if (state == optimizer.state().end()) continue;
    const FlatMember& first = flat->members().front();
    states[StateKey(first.tensor)] = Hollow(*state->second);
    for (const FlatMember& member : flat->members()) like[member.name] = first.name;
  }
  c10::List<std::string> list;
  for (const std::string& name : whole.Names()) list.push_back(like[name]);

  const StateAside aside(optimizer);
  optimizer.state() = std::move(states);
  const OtherParameters over_the_whole(optimizer, whole.Parameters());
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  WriteWhose(archive, KindOf(optimizer), whole.Names());
  archive.write(kLikeKey, torch::IValue(list));
  std::string bytes;
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  return bytes;
}

Status AddOptimizer(const FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                    ShardCollector* collector) {
  const WholeGroups whole(parts.module(), parts.flats(), optimizer);
  for (const FlatParameter* const flat : whole.flats()) {
    const auto state = optimizer.state().find(StateKey(flat->shard()));
    if (state == optimizer.state().end()) continue;
    std::vector<torch::Tensor*> tensors;
    if (!TensorsOf(*state->second, &tensors)) {
      return UnimplementedError("the state of " + KindOf(optimizer) + " does not show its tensors");
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]->defined()) collector->AddMembers(*flat, *tensors[i], StatePrefix(i));
    }
  }
  collector->AddText(kHeadName, HeadOf(whole, optimizer));
  return OkStatus();
}

}  // namespace

Result<ShardedState> ShardsOf(FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                              std::string extra) {
  CADRE_RETURN_IF_ERROR(parts.units().failure());
  CADRE_RETURN_IF_ERROR(parts.CheckOptimizer(optimizer));
  ShardCollector collector(parts.units().route());
  CADRE_RETURN_IF_ERROR(Guarded("shards of a sharded model", [&]() -> Status {
    const torch::NoGradGuard no_grad;
    for (const FlatParameter* const flat : parts.flats()) {
      collector.AddMembers(*flat, flat->shard(), kModelPrefix);
    }
    for (const auto& buffer : parts.module().named_buffers()) {
      if (buffer.value().defined())
        collector.AddWhole(kBufferPrefix + buffer.key(), buffer.value());
    }
    return AddOptimizer(parts, optimizer, &collector);
  }));
  collector.AddText(kExtraName, std::move(extra));
  return collector.Take();
}

}  // namespace cadre::nn
