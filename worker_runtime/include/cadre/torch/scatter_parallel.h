// One process and several devices: torch.nn.DataParallel of PyTorch's Python. Each call copies the
// module to the other devices, cuts the batch into parts, runs each part on its device, and joins
// what comes out; the backward pass adds all gradients up in the module's own parameters.
//
//   net->to(torch::Device(torch::kCUDA, 0));
//   CADRE_ASSIGN_OR_RETURN(auto model, cadre::nn::ScatterParallel<NetImpl>::Create(net.ptr()));
//   loss(model->forward(images), labels).backward();
//   optimizer.step();
//
// One process for each device and DataParallel (data_parallel.h) is faster, also on one machine:
// this is for a program that cannot be several. After nn/parallel/data_parallel.py, and
// torch::nn::parallel::data_parallel() of libtorch, which knows CUDA alone, loses what the module
// does to its buffers, and fails where a part of the batch does not use a parameter.
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
  // All of one kind, each once. The module is on the first of them. Empty: all that there are of
  // the kind that the module is on.
  std::vector<torch::Device> devices = {};
  // Of what is returned; the first of `devices` unless said.
  std::optional<torch::Device> output_device = std::nullopt;
  // That of samples, in all that goes in and comes out.
  int64_t dimension = 0;
};

namespace internal {

// INVALID_ARGUMENT: as ScatterParallel::Create() says. What is left open is filled in.
Result<ScatterParallelOptions> PrepareScatter(const torch::nn::Module& module,
                                              ScatterParallelOptions options);

// The forward pass of a module, or of a copy of it, on its own tensors.
using ReplicaCall = std::function<std::vector<torch::Tensor>(torch::nn::Module&,
                                                             const std::vector<torch::Tensor>&)>;
std::vector<torch::Tensor> RunScattered(const std::shared_ptr<torch::nn::Module>& module,
                                        const ScatterParallelOptions& options,
                                        const std::vector<torch::Tensor>& inputs,
                                        const ReplicaCall& call);

}  // namespace internal

// One thread. With one device, or a batch of one part, the module is called and nothing is copied.
//
// On the first device the module itself runs, on the others its clone(), for which it must be a
// torch::nn::Cloneable: reset() must make all parameters, buffers and submodules, and costs its
// time in each call. So buffers keep what the first device's part did to them, as running
// statistics, and nothing of the others'. The copies stay for as long as the graph of what was
// returned.
//
// Each part has a thread of its own, the first the caller's, with the caller's gradient mode,
// autocast and streams. What the copies share with the module, members that point elsewhere, their
// threads use at the same time.
template <typename Module>
class ScatterParallel {
 public:
  //   INVALID_ARGUMENT  a device is named twice, or they are of several kinds; a parameter or
  //                     buffer, which is named, is not on the first one
  //   INTERNAL          this libtorch does not know their kind
  static Result<std::unique_ptr<ScatterParallel>> Create(std::shared_ptr<Module> module,
                                                         ScatterParallelOptions options = {}) {
    CADRE_ASSIGN_OR_RETURN(options, internal::PrepareScatter(*module, std::move(options)));
    return std::unique_ptr<ScatterParallel>(
        new ScatterParallel(std::move(module), std::move(options)));
  }

  // The module's forward(args...). Tensors among the arguments, alone or in vectors and tuples, may
  // be on any device, and are cut into parts of equal size, the last of which may be smaller: 5
  // samples on 4 devices are 2, 2 and 1 on three. Those without dimensions go to each device, and
  // so does all that is no tensor. The module returns a tensor, or a vector or tuple of them; one
  // without dimensions becomes a vector of one element for each part.
  //
  // Throws c10::Error: tensors have different numbers of samples; the parts returned what does not
  // fit together; what the module threw, the first device's first, with the device in its text.
  // Where that is no c10::Error, a std::runtime_error with the text, in which the other is nested.
  template <typename... Args>
  auto forward(const Args&... args) {
    using Arguments = std::tuple<std::decay_t<const Args&>...>;
    using Output = std::decay_t<decltype(std::declval<Module&>().forward(
        std::declval<std::decay_t<const Args&>&>()...))>;
    static_assert(internal::HoldsTensorsAlone<Output>(),
                  "forward() must return a tensor, or a vector or tuple of tensors");
    Arguments arguments(args...);
    const std::vector<torch::Tensor> inputs = internal::TakeTensors(arguments);
    // What the module returns, but for its tensors.
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
