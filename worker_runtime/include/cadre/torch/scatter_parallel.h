// Uses several devices from one process: torch.nn.DataParallel of PyTorch's Python. Each call
// copies the module to the other devices, splits the batch, runs each part on its device, and joins
// the outputs; the backward pass accumulates all gradients in the module's own parameters.
//
//   net->to(torch::Device(torch::kCUDA, 0));
//   CADRE_ASSIGN_OR_RETURN(auto model, cadre::nn::ScatterParallel<NetImpl>::Create(net.ptr()));
//   loss(model->forward(images), labels).backward();
//   optimizer.step();
//
// One process per device with DataParallel (data_parallel.h) is faster, also on one machine: this
// is for programs that cannot use several processes. After nn/parallel/data_parallel.py and
// libtorch's torch::nn::parallel::data_parallel(), which supports only CUDA, loses the module's
// changes to its buffers, and fails if a part of the batch does not use a parameter.
#ifndef CADRE_TORCH_SCATTER_PARALLEL_H_
#define CADRE_TORCH_SCATTER_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cadre/result.h"
#include "cadre/status_macros.h"
#include "cadre/torch/tensor_values.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

struct ScatterParallelOptions {
  // All of one kind, without duplicates; the module is on the first of them. Empty: all devices of
  // the kind that the module is on.
  std::vector<torch::Device> devices = {};
  // The device of the output; by default the first of `devices`.
  std::optional<torch::Device> output_device = std::nullopt;
  // The dimension of samples, in all inputs and outputs.
  int64_t dimension = 0;
};

namespace internal {

// Fills in defaults. INVALID_ARGUMENT: as in ScatterParallel::Create().
Result<ScatterParallelOptions> PrepareScatter(const torch::nn::Module& module,
                                              ScatterParallelOptions options);

// Runs the forward pass of a module, or of a copy of it, on its own tensors.
using ReplicaCall = std::function<std::vector<torch::Tensor>(torch::nn::Module&,
                                                             const std::vector<torch::Tensor>&)>;
std::vector<torch::Tensor> RunScattered(const std::shared_ptr<torch::nn::Module>& module,
                                        const ScatterParallelOptions& options,
                                        const std::vector<torch::Tensor>& inputs,
                                        const ReplicaCall& call);

}  // namespace internal

// Used by one thread. With one device, or a batch of one part, the module is called and nothing is
// copied.
//
// The module itself runs on the first device, and its clone() on each other one, so it must be a
// torch::nn::Cloneable: reset() must create all parameters, buffers and submodules, and its time is
// spent in each call. Buffers therefore keep changes, such as running statistics, of the first
// device's part only. The copies live as long as the graph of the output.
//
// Each part runs on its own thread, the first on the caller's, with the caller's gradient mode,
// autocast and streams. Members that the copies share with the module, such as pointers, are
// accessed by these threads concurrently.
template <typename Module>
class ScatterParallel {
 public:
  //   INVALID_ARGUMENT  a device is named twice, or they are of several kinds; a parameter or
  //                     buffer, which is named, is not on the first one
  //   INTERNAL          this libtorch does not support their kind
  static Result<std::unique_ptr<ScatterParallel>> Create(std::shared_ptr<Module> module,
                                                         ScatterParallelOptions options = {}) {
    CADRE_ASSIGN_OR_RETURN(options, internal::PrepareScatter(*module, std::move(options)));
    return std::unique_ptr<ScatterParallel>(
        new ScatterParallel(std::move(module), std::move(options)));
  }

  // Calls the module's forward(args...). Tensors among the arguments, alone or in vectors and
  // tuples, may be on any device, and are cut into parts of equal size, the last of which may be
  // smaller: 5 samples on 4 devices are 2, 2 and 1 on three. Tensors without dimensions, and
  // arguments that are not tensors, go to each device. The module returns a tensor, or a vector or
  // tuple of them; an output without dimensions becomes a vector with one element per part.
  //
  // Throws c10::Error if tensors have different numbers of samples, if the parts' outputs do not
  // fit together, or if the module threw: the error of the lowest device, with the device in its
  // text. If the module's exception is not a c10::Error, throws a std::runtime_error with its text,
  // in which it is nested.
  template <typename... Args>
  auto forward(const Args&... args) {
    using Arguments = std::tuple<std::decay_t<const Args&>...>;
    using Output = std::decay_t<decltype(std::declval<Module&>().forward(
        std::declval<std::decay_t<const Args&>&>()...))>;
    static_assert(internal::HoldsTensorsAlone<Output>(),
                  "forward() must return a tensor, or a vector or tuple of tensors");
    Arguments arguments(args...);
    const std::vector<torch::Tensor> inputs = internal::TakeTensors(arguments);
    // The module's return value without its tensors.
    std::optional<Output> returned;
    const auto call = [&](torch::nn::Module& replica, const std::vector<torch::Tensor>& own) {
      Arguments with_tensors = arguments;
      internal::PutTensors(own, with_tensors);
      Output output = std::apply(
          [&replica](auto&... one) { return dynamic_cast<Module&>(replica).forward(one...); },
          with_tensors);
      std::vector<torch::Tensor> outputs = internal::TakeTensors(output);
      if (&replica == module_.get()) returned.emplace(std::move(output));
      return outputs;
    };
    const auto outputs = internal::RunScattered(module_, options_, inputs, call);
    internal::PutTensors(outputs, *returned);
    return *std::move(returned);
  }

  Module& module() { return *module_; }
  const std::vector<torch::Device>& devices() const { return options_.devices; }

 private:
  ScatterParallel(std::shared_ptr<Module> module, ScatterParallelOptions options)
      : module_(std::move(module)), options_(std::move(options)) {}

  const std::shared_ptr<Module> module_;
  const ScatterParallelOptions options_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SCATTER_PARALLEL_H_
