// libtorch tensors as the plain memory that worker_runtime works on.
#ifndef CADRE_TORCH_TENSORS_H_
#define CADRE_TORCH_TENSORS_H_

#include <chrono>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

// The memory of a tensor on the host. INVALID_ARGUMENT, naming it: elsewhere, with gaps, or of a
// type that collectives do not have.
Result<Buffer> BufferOf(const std::string& name, const torch::Tensor& tensor);

// The parameters that require a gradient, in the order of registration; one that is registered
// twice counts once, under its first name.
struct NamedTensors {
  std::vector<torch::Tensor> tensors;
  std::vector<Parameter> parameters;
};
Result<NamedTensors> TrainedParameters(const torch::nn::Module& module);

// Collective: rank 0's buffers (running averages and the like) on every rank, in one message.
Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                        std::chrono::nanoseconds timeout);

// Collective: see CheckEqualValues(); of parameters and buffers.
Result<uint64_t> CheckEqualState(Communicator& communicator, const torch::nn::Module& module,
                                 std::chrono::nanoseconds timeout);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_TENSORS_H_
