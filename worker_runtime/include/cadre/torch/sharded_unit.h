// How a model calls its submodules whose parameters are sharded (FullySharded): C++ modules have no
// hooks for this.
//
//   torch::Tensor NetImpl::forward(torch::Tensor x) {
//     for (auto& block : blocks) x = cadre::nn::CallUnit(block, x);
//     return head(x);
//   }
//
// A module that is not a unit is called directly, so the model also runs without FullySharded.
#ifndef CADRE_TORCH_SHARDED_UNIT_H_
#define CADRE_TORCH_SHARDED_UNIT_H_

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cadre/status.h"
#include "torch/nn/module.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cadre::nn {

// A module whose parameters are gathered while it is called, and while its backward pass runs.
// A global table maps the module's address to its unit; any thread may look it up.
class ShardedUnit {
 public:
  virtual ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  // Null if the module is not a unit.
  static ShardedUnit* Of(const torch::nn::Module& module);

  virtual void BeforeForward() = 0;
  virtual void AfterForward() = 0;
  // Marks an input of the module, whose gradient is the end of the unit's backward pass.
  virtual torch::Tensor Enter(const torch::Tensor& input) = 0;
  // Marks an output of the module, whose gradient is the beginning of the unit's backward pass.
  virtual void Leave(const torch::Tensor& output) = 0;

  // While it lives, the module is being called.
  class Call {
   public:
    explicit Call(ShardedUnit& unit) : unit_(unit) { unit_.BeforeForward(); }
    ~Call() { unit_.AfterForward(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    ShardedUnit& unit_;
  };

 protected:
  explicit ShardedUnit(const torch::nn::Module& module) : module_(&module) {}
  const torch::nn::Module& module() const { return *module_; }
  // Registers the unit. FAILED_PRECONDITION: the module is already a unit of another model.
  Status Announce();

 private:
  const torch::nn::Module* const module_;
};

namespace internal {

// The module itself, or the one in a libtorch holder or a std::shared_ptr.
template <typename Callee>
auto& Called(Callee& callee) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Callee>) {
    return callee;
  } else {
    return *callee;
  }
}

template <typename T>
decltype(auto) EnterUnit(ShardedUnit& unit, T&& argument) {
  using Plain = std::decay_t<T>;
  if constexpr (std::is_same_v<Plain, torch::Tensor>) {
    return unit.Enter(argument);
  } else if constexpr (std::is_same_v<Plain, std::vector<torch::Tensor>>) {
    Plain entered;
    for (const torch::Tensor& one : argument) entered.push_back(unit.Enter(one));
    return entered;
  } else {
    return std::forward<T>(argument);
  }
}

inline void LeaveUnit(ShardedUnit& unit, const torch::Tensor& output) { unit.Leave(output); }
inline void LeaveUnit(ShardedUnit& unit, const std::vector<torch::Tensor>& outputs) {
  for (const torch::Tensor& one : outputs) unit.Leave(one);
}
template <typename... Outputs>
void LeaveUnit(ShardedUnit& unit, const std::tuple<Outputs...>& outputs) {
  std::apply([&unit](const auto&... one) { (LeaveUnit(unit, one), ...); }, outputs);
}

}  // namespace internal

// Calls module.forward(args...) of a module, a holder of one or a std::shared_ptr to one. A unit
// returns a tensor, a vector of tensors, or a tuple of these. Tensors that are not passed as an
// argument, alone or in a vector, are not seen: the unit's gradients are then sent to the other
// ranks only at the end of the backward pass.
template <typename Module, typename... Args>
auto CallUnit(Module&& callee, Args&&... args) {
  auto& module = internal::Called(callee);
  ShardedUnit* const unit = ShardedUnit::Of(module);
  if (unit == nullptr) return module.forward(std::forward<Args>(args)...);
  const ShardedUnit::Call call(*unit);
  auto output = module.forward(internal::EnterUnit(*unit, std::forward<Args>(args))...);
  internal::LeaveUnit(*unit, output);
  return output;
}

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_UNIT_H_
