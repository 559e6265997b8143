// A flat tensor with the parameters of one unit, type and kind, sharded evenly over the ranks; a
// part of FullySharded. After PyTorch's FlatParameter (FSDP1).
//
// The parameters remain the module's own tensors. While the flat tensor is gathered they are views
// of it; otherwise they are empty (their shape is {0}), so that operators that use them fail
// instead of reading garbage. The flat tensor's storage object stays the same: what autograd saved
// of it in the forward pass has no memory in between, and has the same values again for the
// backward pass.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FLAT_PARAMETER_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FLAT_PARAMETER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "cadre/work.h"
#include "torch/types.h"

namespace cadre::nn {

// How a group of ranks communicates.
struct RankRoute {
  // Null if there is only this rank.
  Communicator* host = nullptr;
  // Connects the ranks' devices; null: the data is on the host, or goes through it.
  Communicator* device = nullptr;
  DeviceStream* stream = nullptr;

  bool alone() const { return host == nullptr || host->size() == 1; }
  Communicator& communicator() const { return device == nullptr ? *host : *device; }
};

// How the ranks' parts are gathered and reduced.
struct ShardRoute {
  // The ranks that each have another part.
  RankRoute parts;
  // In hybrid sharding, the ranks that have the same part. On devices they use a separate stream,
  // so that traffic between nodes does not delay traffic within one.
  RankRoute replicas;
  std::chrono::nanoseconds timeout{};
  // Collects the works of `device`, the oldest first; their status becomes known later.
  std::deque<std::shared_ptr<Work>>* under_way = nullptr;
};

// This rank's name in error messages.
std::string RankName(const ShardRoute& route);

// The types in which shards are kept, gathered and reduced.
struct ShardTypes {
  // Whether shards of a device are kept in host memory, which the device copies in stream order.
  bool kept_on_host = false;
  torch::ScalarType kept = torch::kFloat32;
  torch::ScalarType gathered = torch::kFloat32;
  torch::ScalarType reduced = torch::kFloat32;
};

struct FlatMember {
  std::string name;
  // The module's own tensor.
  torch::Tensor tensor;
  // Filled in by the flat parameter.
  std::vector<int64_t> shape = {};
  int64_t offset = 0;
  int64_t count = 0;
};

// Used by one thread at a time. Errors are the communicator's; after one, only GatherNothing() may
// be called.
class FlatParameter {
 public:
  // The parameter is on `device`, on which the members must be when they are taken. Until Take(),
  // this rank's part is zeros and the members are unchanged.
  FlatParameter(std::vector<FlatMember> members, bool trained, const ShardTypes& types,
                const torch::Device& device, const ShardRoute& route);
  ~FlatParameter();
  FlatParameter(const FlatParameter&) = delete;
  FlatParameter& operator=(const FlatParameter&) = delete;

  const std::vector<FlatMember>& members() const { return members_; }
  bool trained() const { return trained_; }
  // This rank's part, a leaf tensor for an optimizer; it requires a gradient if trained().
  const torch::Tensor& shard() const { return shard_; }
  // The bytes of the gathered tensor.
  size_t gathered_bytes() const { return static_cast<size_t>(count_) * flat_.element_size(); }
  // The elements of the whole tensor, including padding between and after the members.
  int64_t count() const { return count_; }
  // Whether the whole tensor has memory.
  bool allocated() const { return allocated_; }

  // Keeps this rank's part of a member's value and empties the member. Not collective: all ranks
  // must have the same value.
  void Take(size_t member);

  // Starts to gather. The whole tensor is present when FinishGather() returns; on a device, for
  // later work on the calling thread's current stream.
  Status StartGather();
  Status FinishGather();
  // Call after an error: provides zeroed memory, so that the pass can run to its end.
  void GatherNothing();
  // Makes the members views of the whole tensor, which must be present.
  void Show();
  // Collective, called after Show(); waits. Shows the parts in the type in which they are kept,
  // instead of the type in which they were gathered.
  Status ShowAsKept();
  // Empties the members and frees the memory.
  Status Free();
  // Copies this rank's part of the whole tensor to its shard.
  void KeepOwnPart();

  // Averages the members' gradients over all ranks and removes them from the members; a missing one
  // counts as zero. ReduceAcross() passes the oldest reduction over the parts, once done, on to the
  // replicas. FinishReduce() waits for the oldest one passed on and adds it to the shard's
  // gradient. INVALID_ARGUMENT: a gradient has another shape, since the parameter was used while it
  // was empty.
  Status StartReduce();
  Status ReduceAcross();
  Status FinishReduce();
  // Whether ReduceAcross() blocks the host until the parts are reduced.
  bool waits_before_across() const;

  // A member's range of a whole tensor, and this rank's part of that tensor.
  torch::Tensor MemberOf(const torch::Tensor& whole, size_t member) const;
  torch::Tensor OwnPartOf(const torch::Tensor& whole) const;
  // The overlap of this rank's part and a member: `count` elements from the member's `begin` on,
  // which are at `at` in the part. `count` is 0 if they do not overlap.
  struct OwnRange {
    int64_t begin = 0;
    int64_t count = 0;
    int64_t at = 0;
  };
  OwnRange OwnRangeOf(size_t member) const;
  // Collective; waits. Gathers a tensor of the shard's size from each rank into a whole one on the
  // host.
  Status GatherOnHost(const torch::Tensor& part, torch::Tensor* whole);

 private:
  struct Reduction {
    torch::Tensor whole;
    torch::Tensor own;
    std::shared_ptr<Work> work = nullptr;
    // Whether `own` is being copied to the host in the order of a stream.
    bool offloading = false;
  };

  bool on_host() const { return flat_.device().is_cpu(); }
  bool through_host(const RankRoute& ranks) const { return !on_host() && ranks.device == nullptr; }
  bool offloads() const { return types_.kept_on_host && !on_host(); }
  void LayOut();
  void Empty(const FlatMember& member) const;
  // The last stream of a reduction.
  const DeviceStream& last_stream() const {
    return route_.replicas.alone() ? *route_.parts.stream : *route_.replicas.stream;
  }
  void Allocate();
  void GiveBack();
  Status PackGradients(torch::Tensor* whole);
  Status Await(const RankRoute& ranks, const std::shared_ptr<Work>& work);

  std::vector<FlatMember> members_;
  const bool trained_;
  const ShardTypes types_;
  const ShardRoute route_;
  int64_t count_ = 0;
  torch::Tensor shard_;
  // Always has its storage, which often has no memory.
  torch::Tensor flat_;
  // The members' views of flat_'s storage.
  std::vector<torch::Tensor> views_;
  // The whole tensor in the type of the parts, made by ShowAsKept().
  torch::Tensor as_kept_;
  bool allocated_ = false;
  bool shown_ = false;
  // The gather that is running.
  std::shared_ptr<Work> gather_;
  torch::Tensor sent_;
  torch::Tensor received_;
  // The point in the stream at which the gather is done.
  DevicePoint there_;
  // The reductions over the parts, and those passed on to the replicas.
  std::deque<Reduction> reductions_;
  std::deque<Reduction> across_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FLAT_PARAMETER_H_
