// How a model calls the parts of it whose parameters are sharded (FullySharded): C++ modules have
// no hooks that would do it.
//
//   torch::Tensor NetImpl::forward(torch::Tensor x) {
//     for (auto& block : blocks) x = cadre::nn::CallUnit(block, x);
//     return head(x);
//   }
//
// A module that is no unit is called as it is, so the model runs without FullySharded, too.
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

// A module whose parameters are there while it is called, and while its backward pass runs. Found
// by the module's address, from any thread.
class ShardedUnit {
 public:
  virtual ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  // Null: the module is no unit.
  static ShardedUnit* Of(const torch::nn::Module& module);

  virtual void BeforeForward() = 0;
  virtual void AfterForward() = 0;
  // What goes into the module: its gradient is the end of the unit's backward pass.
  virtual torch::Tensor Enter(const torch::Tensor& input) = 0;
  // What comes out of it: its gradient is the beginning.
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
  // FAILED_PRECONDITION: the module is one of another model's units already.
  Status Announce();

 private:
  const torch::nn::Module* const module_;
};

namespace internal {

// A module itself, or what a holder of libtorch's or a std::shared_ptr holds.
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

// module.forward(args...), of a module, a holder of one or a std::shared_ptr to one. A unit returns
// a tensor, a vector of tensors, or a tuple of these. Tensors that go in otherwise than as an
// argument, alone or in a vector, are not seen: the unit's gradients then go to the other ranks at
// the end of the backward pass.
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
