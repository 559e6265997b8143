// One unit of FullyShardedUnits; for its own sources alone.
#ifndef CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNIT_H_
#define CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNIT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadre/torch/fully_sharded/flat_parameter.h"
#include "cadre/torch/fully_sharded/fully_sharded_units.h"
#include "cadre/torch/sharded_unit.h"

namespace cadre::nn {

// One input that the backward pass has not come to: until it does, or until its graph is gone
// without.
class AwaitedInput {
 public:
  explicit AwaitedInput(std::shared_ptr<std::atomic<int>> all) : all_(std::move(all)) { ++*all_; }
  ~AwaitedInput() { Came(); }
  AwaitedInput(const AwaitedInput&) = delete;
  AwaitedInput& operator=(const AwaitedInput&) = delete;

  // A graph that is gone through twice comes more than once.
  void Came() {
    if (!std::exchange(came_, true)) --*all_;
  }

 private:
  const std::shared_ptr<std::atomic<int>> all_;
  bool came_ = false;
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

  // Among the units.
  const int32_t index;
  // In the module; empty: the root.
  const std::string name;
  // Before they are sharded.
  std::vector<FlatMember> parameters;
  std::vector<std::unique_ptr<FlatParameter>> flats;

  enum class State { kSharded, kOnItsWay, kThere };
  State state = State::kSharded;
  // Forward calls under way.
  int calls = 0;
  // How many inputs are awaited; those that are left when a backward pass ends keep the old one.
  std::shared_ptr<std::atomic<int>> inputs = std::make_shared<std::atomic<int>>(0);
  bool in_backward = false;
  // The units that began after this one when it last ran.
  Unit* next_forward = nullptr;
  Unit* next_backward = nullptr;

 private:
  FullyShardedUnits& owner_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNIT_H_
