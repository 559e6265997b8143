// Activation checkpointing: a part of the model keeps only its inputs; the values computed from
// them are computed again in the backward pass (arXiv 1604.06174).
//
//   torch::Tensor NetImpl::forward(torch::Tensor x) {
//     for (auto& block : blocks) x = cadre::nn::Checkpointed(block, x);   // for block->forward(x)
//     return head(x);
//   }
//
// After torch.utils.checkpoint with use_reentrant=True: a backward pass within the backward pass.
// (The other kind needs hooks on saved tensors, which libtorch offers only to Python.) Unlike
// there, inputs need not require gradients, running statistics of batch normalization are updated
// once, and autocast's copies that the first run makes are not kept for others.
#ifndef CADRE_TORCH_CHECKPOINTED_H_
#define CADRE_TORCH_CHECKPOINTED_H_

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cadre/torch/sharded_unit.h"
#include "cadre/torch/tensor_values.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace cadre::nn {

struct CheckpointOptions {
  // The second run draws the same random numbers as the first: on the host, and on the inputs'
  // devices if libtorch knows their generators (CUDA's; others from 2.x on).
  bool preserve_random = true;
  // Inputs on devices are kept in pinned host memory between the runs. The copy back is
  // synchronous.
  bool offload_to_host = false;
  // The buffers of these modules are the same after the second run as before it, so that running
  // statistics are updated once. A module that is itself checkpointed need not be listed.
  std::vector<const torch::nn::Module*> modules = {};
};

namespace internal {

template <typename T, typename = void>
struct IsModule : std::is_base_of<torch::nn::Module, T> {};
// A holder of a module.
template <typename T>
struct IsModule<T, std::void_t<decltype(*std::declval<T&>())>>
    : std::is_base_of<torch::nn::Module, std::decay_t<decltype(*std::declval<T&>())>> {};

using TensorFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;
std::vector<torch::Tensor> RunCheckpointed(TensorFunction function,
                                           std::vector<torch::Tensor> inputs,
                                           const CheckpointOptions& options);

template <typename Function, typename... Args>
auto CheckpointFunction(const CheckpointOptions& options, Function function, Args&&... args) {
  using Output = std::decay_t<decltype(function(std::decay_t<Args>(args)...))>;
  std::tuple<std::decay_t<Args>...> arguments(std::forward<Args>(args)...);
  if (!torch::GradMode::is_enabled()) return Output(std::apply(function, std::move(arguments)));
  std::vector<torch::Tensor> inputs = TakeTensors(arguments);
  // The returned value without its tensors.
  const auto returned = std::make_shared<std::optional<Output>>();
  auto flat = RunCheckpointed(
      [function, arguments, returned](const std::vector<torch::Tensor>& tensors) mutable {
        auto with_tensors = arguments;
        PutTensors(tensors, with_tensors);
        Output output = std::apply(function, std::move(with_tensors));
        std::vector<torch::Tensor> outputs = TakeTensors(output);
        if (!*returned) returned->emplace(std::move(output));
        return outputs;
      },
      std::move(inputs), options);
  Output output = **returned;
  PutTensors(flat, output);
  return output;
}

}  // namespace internal

// Returns what `callee` returns: callee(args...) for a function; CallUnit(callee, args...) for a
// module, a holder of one or a std::shared_ptr to one, so that a unit of a FullySharded is gathered
// again for the second run. If gradients are off, it only calls it.
//
// Tensors are passed as arguments, alone or in vectors; tensors that a function reaches in other
// ways are not offloaded, and get their gradients as parameters do. The function returns a tensor,
// a vector of them or a tuple of these. It is copied (a module is held by reference and must
// outlive the graph), must do the same both times, and may contain other Checkpointed calls. Its
// graph supports one backward pass unless it is retained; gradients of gradients,
// torch::autograd::grad() and backward(inputs) are not supported.
//
// A parameter that is used in several Checkpointed calls becomes ready several times in a backward
// pass: DataParallel then needs static_graph. With FullySharded, use one unit per Checkpointed
// call: all units in one call are gathered together.
//
// The backward pass throws c10::Error if an input was changed in place, or the second run returned
// something else.
template <typename Callee, typename... Args>
auto CheckpointedWith(CheckpointOptions options, Callee&& callee, Args&&... args) {
  using Plain = std::decay_t<Callee>;
  if constexpr (std::is_base_of_v<torch::nn::Module, Plain>) {
    options.modules.push_back(&callee);
    return internal::CheckpointFunction(
        options,
        [module = &callee](auto&&... arguments) {
          return CallUnit(*module, std::forward<decltype(arguments)>(arguments)...);
        },
        std::forward<Args>(args)...);
  } else if constexpr (internal::IsModule<Plain>::value) {
    options.modules.push_back(&*callee);
    return internal::CheckpointFunction(
        options,
        [module = callee](auto&&... arguments) mutable {
          return CallUnit(*module, std::forward<decltype(arguments)>(arguments)...);
        },
        std::forward<Args>(args)...);
  } else {
    return internal::CheckpointFunction(options, std::forward<Callee>(callee),
                                        std::forward<Args>(args)...);
  }
}

template <typename Callee, typename... Args>
auto Checkpointed(Callee&& callee, Args&&... args) {
  return CheckpointedWith({}, std::forward<Callee>(callee), std::forward<Args>(args)...);
}

}  // namespace cadre::nn

#endif  // CADRE_TORCH_CHECKPOINTED_H_
