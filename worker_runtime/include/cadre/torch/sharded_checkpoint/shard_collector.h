// What a rank keeps, collected into a ShardedState; for the sources of sharded checkpoints alone.
#ifndef CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_COLLECTOR_H_
#define CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_COLLECTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadre/sharded_state.h"
#include "cadre/torch/fully_sharded/flat_parameter.h"
#include "cadre/torch/sharded_checkpoint/shard_names.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

// Collects ranges, and keeps alive what they point to.
class ShardCollector {
 public:
  // `replica`: the one, in hybrid sharding, that this rank is in; a file gets what the first has.
  ShardCollector(int rank, int ranks, int replica = 0) : replica_(replica), state_(rank, ranks) {}

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
  void AddWhole(const std::string& name, const torch::Tensor& tensor, bool elsewhere) {
    Add(TensorOf(name, tensor, tensor.sizes().vec()), 0, tensor.numel(), 0, OnHost(tensor),
        elsewhere);
  }
  // A file gets those of rank 0.
  void AddBuffers(const torch::nn::Module& module) {
    for (const auto& buffer : module.named_buffers()) {
      if (!buffer.value().defined()) continue;
      AddWhole(kBufferPrefix + buffer.key(), buffer.value(), state_.rank() > 0);
    }
  }
  void AddText(const std::string& name, std::string text, bool elsewhere) {
    const auto held = std::make_shared<const std::string>(std::move(text));
    const auto size = static_cast<int64_t>(held->size());
    state_.Add({{name, kTextType, 1, {size}}, 0, size, held->data(), elsewhere}, held);
  }
  int rank() const { return state_.rank(); }
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

  const int replica_;
  ShardedState state_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_COLLECTOR_H_
