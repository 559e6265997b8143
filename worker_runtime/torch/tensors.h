// libtorch tensors as the plain memory that worker_runtime works on.
#ifndef CADRE_WORKER_RUNTIME_TORCH_TENSORS_H_
#define CADRE_WORKER_RUNTIME_TORCH_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/parameter.h"

namespace cadre::nn {

// The memory of a tensor on the host. INVALID_ARGUMENT, naming it: elsewhere, with gaps, or of a
// type that collectives do not have.
absl::StatusOr<Buffer> BufferOf(const std::string& name, const torch::Tensor& tensor);

// The parameters that require a gradient, in the order of registration; one that is registered
// twice counts once, under its first name.
struct NamedTensors {
  std::vector<torch::Tensor> tensors;
  std::vector<Parameter> parameters;
};
absl::StatusOr<NamedTensors> TrainedParameters(const torch::nn::Module& module);

// Collective: rank 0's buffers (running averages and the like) on every rank, in one message.
absl::Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                              absl::Duration timeout);

// Collective: see CheckEqualValues(); of parameters and buffers.
absl::StatusOr<uint64_t> CheckEqualState(Communicator& communicator,
                                         const torch::nn::Module& module, absl::Duration timeout);

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_TENSORS_H_
