// Parameters of one unit, type and kind in one flat tensor that is spread evenly over the ranks:
// what FullySharded is made of. After PyTorch's FlatParameter (FSDP1).
//
// The parameters stay the module's own tensors. While the flat tensor is gathered they are views of
// it; while it is not they are empty (their shape is {0}), so that what uses them fails and reads
// nothing. Its storage object stays the same: what autograd saved of it in the forward pass has no
// memory in between, and has the same values again for the backward pass.
#ifndef CADRE_TORCH_FULLY_SHARDED_FLAT_PARAMETER_H_
#define CADRE_TORCH_FULLY_SHARDED_FLAT_PARAMETER_H_

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

// Between some ranks.
struct RankRoute {
  // Null: there is only this rank.
  Communicator* host = nullptr;
  // Between the ranks' devices; null: on the host, or through it.
  Communicator* device = nullptr;
  DeviceStream* stream = nullptr;

  bool alone() const { return host == nullptr || host->size() == 1; }
  Communicator& communicator() const { return device == nullptr ? *host : *device; }
};

// How the ranks' parts come together.
struct ShardRoute {
  // Of which each has its own part.
  RankRoute parts;
  // In hybrid sharding, those that have the same part. On devices their stream is another, so that
  // what goes between nodes does not hold up what goes within one.
  RankRoute replicas;
  std::chrono::nanoseconds timeout{};
  // Gets what is given to `device`, the oldest first: what becomes of it is known later.
  std::deque<std::shared_ptr<Work>>* under_way = nullptr;
};

// What errors call this rank.
std::string RankName(const ShardRoute& route);

// What shards are kept, gathered and reduced in.
struct ShardTypes {
  // Of a device's, in memory of the host that the device copies in the order of its streams.
  bool kept_on_host = false;
  torch::ScalarType kept = torch::kFloat32;
  torch::ScalarType gathered = torch::kFloat32;
  torch::ScalarType reduced = torch::kFloat32;
};

struct FlatMember {
  std::string name;
  // The module's own.
  torch::Tensor tensor;
  // Filled in by the flat parameter.
  std::vector<int64_t> shape = {};
  int64_t offset = 0;
  int64_t count = 0;
};

// One thread at a time. Errors are the communicator's; after one, GatherNothing() alone may follow.
class FlatParameter {
 public:
  // On the device that the members are on when they are taken. This rank's part is zeros, and the
  // members are what they were, until Take().
  FlatParameter(std::vector<FlatMember> members, bool trained, const ShardTypes& types,
                const torch::Device& device, const ShardRoute& route);
  ~FlatParameter();
  FlatParameter(const FlatParameter&) = delete;
  FlatParameter& operator=(const FlatParameter&) = delete;

  const std::vector<FlatMember>& members() const { return members_; }
  bool trained() const { return trained_; }
  // This rank's part, a leaf for an optimizer; of trained ones it requires a gradient.
  const torch::Tensor& shard() const { return shard_; }
  // Of the whole, gathered.
  size_t gathered_bytes() const { return static_cast<size_t>(count_) * flat_.element_size(); }
  // Elements of the whole, with what is between the members and behind them.
  int64_t count() const { return count_; }
  // Whether there is memory for the whole.
  bool allocated() const { return allocated_; }

  // Keeps this rank's part of a member's value and empties the member. Not collective: all ranks
  // have the same value.
  void Take(size_t member);

  // Starts to gather; the whole is there when FinishGather() returns, on a device for what the
  // calling thread's current stream is given next.
  Status StartGather();
  Status FinishGather();
  // After an error: memory that holds zeros, so that the pass can go on to its end.
  void GatherNothing();
  // The members become views of the whole, which is there.
  void Show();
  // Collective, behind Show(); waits. The members become what the parts are in their own type, in
  // the place of what was gathered in another one to compute with.
  Status ShowAsKept();
  // The members are emptied and the memory is given back.
  Status Free();
  // What of the whole this rank keeps becomes its shard's value.
  void KeepOwnPart();

  // Averages the members' gradients over all ranks and takes them from the members; one that is
  // missing counts as zero. ReduceAcross() hands the oldest reduction, whose parts are there, on to
  // the replicas. FinishReduce() waits for the oldest that was handed on and adds it to the shard's
  // gradient. INVALID_ARGUMENT: a gradient has another shape, since the parameter was used while it
  // was empty.
  Status StartReduce();
  Status ReduceAcross();
  Status FinishReduce();
  // Whether the host waits for the parts in ReduceAcross().
  bool waits_before_across() const;

  // A member's part of a whole, and this rank's part of it.
  torch::Tensor MemberOf(const torch::Tensor& whole, size_t member) const;
  torch::Tensor OwnPartOf(const torch::Tensor& whole) const;
  // What this rank's part has of a member: `count` elements from the member's `begin` on, which lie
  // from `at` on in the part. Of none, `count` is 0.
  struct OwnRange {
    int64_t begin = 0;
    int64_t count = 0;
    int64_t at = 0;
  };
  OwnRange OwnRangeOf(size_t member) const;
  // Collective; waits: a tensor of the shard's size on each rank as a whole on the host.
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
  // What a reduction goes through last.
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
  // Has its storage, which often has no memory.
  torch::Tensor flat_;
  // Of the members, over flat_'s storage.
  std::vector<torch::Tensor> views_;
  // The whole in the type of the parts, where ShowAsKept() made it.
  torch::Tensor as_kept_;
  bool allocated_ = false;
  bool shown_ = false;
  // Of a gather on its way.
  std::shared_ptr<Work> gather_;
  torch::Tensor sent_;
  torch::Tensor received_;
  // Where the stream has it.
  DevicePoint there_;
  // Over the ranks with parts, and those that were handed on to the replicas.
  std::deque<Reduction> reductions_;
  std::deque<Reduction> across_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_FLAT_PARAMETER_H_
