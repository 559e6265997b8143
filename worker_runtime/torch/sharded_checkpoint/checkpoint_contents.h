// What a sharded checkpoint of a model and its optimizer contains, for sharded_checkpoint.cc: the
// names of its tensors, the optimizer without the contents of its state's tensors, and how a rank's
// part is collected and read.
#ifndef CADRE_WORKER_RUNTIME_TORCH_SHARDED_CHECKPOINT_CHECKPOINT_CONTENTS_H_
#define CADRE_WORKER_RUNTIME_TORCH_SHARDED_CHECKPOINT_CHECKPOINT_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cadre/sharded_state.h"
#include "cadre/status.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/types.h"
#include "worker_runtime/torch/fully_sharded/flat_parameter.h"
#include "worker_runtime/torch/optimizer_state.h"

namespace cadre::nn {

// Prefixes of the names of parameters and buffers.
inline constexpr char kModelPrefix[] = "model.";
inline constexpr char kBufferPrefix[] = "buffer.";
// The prefix of the parameter's name; `tensor` is an index in the order of TensorsOf()
// (optimizer_state.h).
inline std::string StatePrefix(size_t tensor) {
  return "optimizer." + std::to_string(tensor) + ".";
}

// The optimizer's archive, with tensors of no elements: one for all ranks, or one per rank, whose
// number follows the prefix, with the states that the rank has. kExtraName is the program's own
// data.
inline constexpr char kHeadName[] = "optimizer";
inline constexpr char kRankHeadPrefix[] = "optimizer_of_rank.";
inline constexpr char kExtraName[] = "extra";
// The type of these entries.
inline constexpr char kTextType[] = "text";
// A key in the archive: for each parameter, the one whose state represents its own; empty: it has
// no state.
inline constexpr char kLikeKey[] = "cadre_like";

// States by the parameters' names; their tensors have no elements.
using StatesWithoutTensors =
    std::map<std::string, std::unique_ptr<torch::optim::OptimizerParamState>>;

// Like TensorsOf(). UNIMPLEMENTED: the optimizer is not one of libtorch's own.
Status VisibleTensors(const torch::optim::Optimizer& optimizer,
                      torch::optim::OptimizerParamState& state,
                      std::vector<torch::Tensor*>* tensors);

std::unique_ptr<torch::optim::OptimizerParamState> WithoutTensors(
    const torch::optim::OptimizerParamState& state);

// Writes what save() of an optimizer over these groups writes. `like` maps each parameter that has
// a state to the one in `states` whose state represents it; several may share one.
std::string WriteHead(torch::optim::Optimizer& optimizer, const NamedGroups& groups,
                      const StatesWithoutTensors& states,
                      const std::map<std::string, std::string>& like);

// Reads all heads. The optimizer gets the options, and a state, which the caller must move aside
// and replace. INVALID_ARGUMENT: they are another optimizer's, or there is none. Throws what
// libtorch throws for data that it cannot read.
Status ReadHeads(const SavedShards& saved, const NamedGroups& groups,
                 torch::optim::Optimizer& optimizer, StatesWithoutTensors* states);

// Collects a rank's part into a ShardedState: ranges, and what keeps the data alive to which they
// refer.
class ShardCollector {
 public:
  // `replica` is this rank's replica in hybrid sharding; only the first replica's data is written
  // to files.
  ShardCollector(int rank, int ranks, int replica = 0) : replica_(replica), state_(rank, ranks) {}

  // Adds the members' ranges of `own`, a tensor of the shard's size.
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
  // Only rank 0's buffers are written to files.
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

// Pairs of a tensor and its new value, applied once everything is read.
using LoadedTensors = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

// INVALID_ARGUMENT: the tensor saved as `name`, shown in errors as `shown`, has another type or
// shape. Tensors without elements are not saved by any rank and may be missing.
Status CheckTensor(const SavedShards& saved, const std::string& name, const std::string& shown,
                   torch::ScalarType type, torch::IntArrayRef shape);

// Reads a whole tensor, on the host.
Status ReadWhole(const SavedShards& saved, const std::string& name, const std::string& shown,
                 torch::ScalarType type, torch::IntArrayRef shape, torch::Tensor* read);

// `text` is empty if there is none.
Status ReadText(const SavedShards& saved, const std::string& name, std::string* text);

// Appends the buffers to `loaded`, and their names to `known`.
Status ReadBuffers(const SavedShards& saved, const torch::nn::Module& module, LoadedTensors* loaded,
                   std::set<std::string>* known);

// INVALID_ARGUMENT: the checkpoint has a parameter or a buffer that is not in `known`.
Status CheckNoOthers(const SavedShards& saved, const std::set<std::string>& known);

// The error to return if something could not be read, beginning with `who`: libtorch's exceptions,
// which arrive as INTERNAL, become INVALID_ARGUMENT, since libtorch fails on a state of another
// kind.
Status NotRead(const Status& status, const std::string& who);

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_SHARDED_CHECKPOINT_CHECKPOINT_CONTENTS_H_
