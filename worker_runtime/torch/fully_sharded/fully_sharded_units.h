// The parts of FullyShardedUnits (cadre/torch/fully_sharded.h), for its own source: a unit, the
// order of units in a pass, reductions that are running, and the watch over parameters that are
// empty.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "cadre/status.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/sharded_unit.h"
#include "torch/types.h"
#include "worker_runtime/torch/fully_sharded/flat_parameter.h"

namespace cadre::nn {

// Detects operators that use an empty parameter, whose unit is not running. Watches the operators
// of the thread that created it, while it lives; one watch at a time per thread. It adds about a
// microsecond to each operator.
class ParameterWatch {
 public:
  // The parameters' names by their implementations, without parameters that are empty by
  // definition.
  using Names = std::map<const void*, std::string>;

  explicit ParameterWatch(Names names);
  ~ParameterWatch();
  ParameterWatch(const ParameterWatch&) = delete;
  ParameterWatch& operator=(const ParameterWatch&) = delete;

  // The first parameter that was used while it was empty; empty text: none.
  const std::string& found() const { return found_; }

 private:
  static std::unique_ptr<at::ObserverContext> OnOperator(const at::RecordFunction& call);
  void Check(const torch::Tensor& tensor);

  const Names names_;
  std::string found_;
  at::CallbackHandle handle_;
};

// The order of a pass's units, which all ranks must share. A communicator cannot tell apart gathers
// of units of the same size, and would mix up their parameters. So ranks compare their orders if
// one differs from the previous pass's, as in the first pass. If only one rank changes its order,
// it makes a call that the others do not make.
class UnitOrder {
 public:
  void Begin() { pass_.clear(); }
  // `index` is the unit's index, the same on all ranks.
  void Add(int32_t index) { pass_.push_back(index); }
  // Collective, called at the end of a forward pass. INVALID_ARGUMENT, naming the rank whose order
  // differed.
  Status Check(const ShardRoute& route);

 private:
  std::vector<int32_t> pass_;
  std::vector<int32_t> before_;
};

// The running reductions of a model's gradients, until the shards have them. Used by one thread.
// Errors are the flat parameters'; after one nothing more may be called.
class PendingReductions {
 public:
  // The route and the flat parameters must outlive this.
  explicit PendingReductions(const ShardRoute& route) : route_(route) {}

  // Starts the reductions of trained parameters, and advances older ones. Steps that would block
  // the computation or the host, on a device, are left to Finish().
  Status Start(const std::vector<std::unique_ptr<FlatParameter>>& flats);
  // Waits until the shards have their gradients.
  Status Finish() { return AdvanceReductions(0, 0); }
  bool empty() const { return reducing_.empty() && across_.empty(); }

 private:
  // Passes all but the last `reducing` reductions on to the replicas, and completes all but the
  // last `across` of those.
  Status AdvanceReductions(size_t reducing, size_t across);

  const ShardRoute& route_;
  // The oldest first; across_ has those that were passed on to the replicas.
  std::deque<FlatParameter*> reducing_;
  std::deque<FlatParameter*> across_;
};

// An input that the backward pass has not reached yet. It counts until then, or until its graph is
// destroyed.
class AwaitedInput {
 public:
  explicit AwaitedInput(std::shared_ptr<std::atomic<int>> all) : all_(std::move(all)) { ++*all_; }
  ~AwaitedInput() { Arrived(); }
  AwaitedInput(const AwaitedInput&) = delete;
  AwaitedInput& operator=(const AwaitedInput&) = delete;

  // May be called more than once, by a graph that is run backward twice.
  void Arrived() {
    if (!std::exchange(arrived_, true)) --*all_;
  }

 private:
  const std::shared_ptr<std::atomic<int>> all_;
  bool arrived_ = false;
};

class FullyShardedUnits::Unit : public ShardedUnit {
 public:
  Unit(FullyShardedUnits* owner, int32_t index, std::string name, const torch::nn::Module& module)
      : ShardedUnit(module), index(index), name(std::move(name)), owner_(*owner) {}

  void BeforeForward() override { owner_.BeforeForward(*this); }
  void AfterForward() override { owner_.AfterForward(*this); }
  torch::Tensor Enter(const torch::Tensor& input) override { return owner_.Enter(*this, input); }
  void Leave(const torch::Tensor& output) override { owner_.Leave(*this, output); }
  using ShardedUnit::Announce;
  using ShardedUnit::module;

  bool root() const { return name.empty(); }
  size_t gathered_bytes() const {
    size_t bytes = 0;
    for (const auto& flat : flats) bytes += flat->gathered_bytes();
    return bytes;
  }
  bool has_gradients() const {
    for (const auto& flat : flats) {
      for (const FlatMember& member : flat->members()) {
        if (member.tensor.grad().defined()) return true;
      }
    }
    return false;
  }

  // The index among the units.
  const int32_t index;
  // The name in the module; empty: the root.
  const std::string name;
  // The parameters before they are sharded.
  std::vector<FlatMember> parameters;
  std::vector<std::unique_ptr<FlatParameter>> flats;

  enum class State { kSharded, kOnItsWay, kThere };
  State state = State::kSharded;
  // The number of running forward calls.
  int calls = 0;
  // The number of awaited inputs. When a backward pass ends, this becomes a new counter, and inputs
  // that are left keep the old one.
  std::shared_ptr<std::atomic<int>> inputs = std::make_shared<std::atomic<int>>(0);
  bool in_backward = false;
  // The units that started after this one when it last ran.
  Unit* next_forward = nullptr;
  Unit* next_backward = nullptr;

 private:
  FullyShardedUnits& owner_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_
