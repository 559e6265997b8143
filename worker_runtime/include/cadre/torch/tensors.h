// libtorch tensors as the plain memory that worker_runtime works on.
#ifndef CADRE_TORCH_TENSORS_H_
#define CADRE_TORCH_TENSORS_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/work.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

class DeviceLinks;

// nullopt: collectives do not have it.
std::optional<DataType> DataTypeOf(torch::ScalarType type);
torch::ScalarType ScalarTypeOf(DataType type);

// UNIMPLEMENTED, naming it and the rank: a bucket has a place for every element, and ranks have
// different elements of a sparse gradient.
Status CheckDense(int rank, const std::string& name, const torch::Tensor& gradient);

// INVALID_ARGUMENT: the parameter is on the meta device.
Status CheckHasValues(const std::string& name, const torch::Tensor& parameter);

// The memory of a tensor on the host. INVALID_ARGUMENT, naming it: elsewhere, with gaps, or of a
// type that collectives do not have.
Result<Buffer> BufferOf(const std::string& name, const torch::Tensor& tensor);

// The memory of a tensor of one dimension without gaps, of a type that collectives have, wherever
// it is.
Buffer BufferOfFlat(const torch::Tensor& flat);

// What makes the average over so many ranks of what each has in `mine`: multiplied before the sum,
// so that the sum cannot overflow where the average does not. In 16 bits it is multiplied right
// here, since a communicator would round the factor, too. The same on all ranks: NCCL has another
// operation for a sum without a factor.
Reduction AverageOf(torch::Tensor& mine, int ranks);

// The type in which gradients of type `own` travel: never a wider one.
torch::ScalarType TypeSent(const PlainAverage& average, torch::ScalarType own);

// Elements of `flat` from `offset` on, in that shape. No view to autograd, which would not let
// zero_grad() detach it.
torch::Tensor PartOf(const torch::Tensor& flat, int64_t offset, torch::IntArrayRef sizes);

// Whether a Reducer works on the tensor's own memory: float32 or float64 on the host.
bool IsReducible(const torch::Tensor& tensor);
// In what a tensor of `type` is reduced: float64 itself, all else float32.
torch::ScalarType ReducedType(torch::ScalarType type);

// Tensors and the memory of the host by which collectives know them.
struct NamedTensors {
  std::vector<torch::Tensor> tensors;
  // Over the tensors' own memory, or over copies[i] where they are on a device or have 16 bits.
  std::vector<Parameter> parameters;
  // Undefined where the parameter is the tensor's own memory.
  std::vector<torch::Tensor> copies;

  // INVALID_ARGUMENT, naming it: a tensor that is undefined, sparse, or of no floating type.
  Status Add(const std::string& name, const torch::Tensor& tensor);
  // The copies become what the tensors are, and the other way round. Both wait for the devices.
  void CopyToHost() const;
  void CopyFromHost() const;
};

// The parameters that require a gradient, in the order of registration; one that is registered
// twice counts once, under its first name. Copies hold nothing yet.
Result<NamedTensors> TrainedParameters(const torch::nn::Module& module);

// A tensor that takes its bytes from one rank.
struct RootedTensor {
  std::string name;
  torch::Tensor tensor;
  int root = 0;
};

// Collective: each tensor becomes its root's, bit for bit, whatever its type. All ranks name the
// same ones in the same order; those of one root and device share messages of up to 25 MiB, larger
// ones go alone and without a copy where they can. Those of devices that `links` connect go there
// without the host, which does not wait for them: they are there for what the calling thread's
// current streams are given next, and what becomes of them is known later: by `under_way`, which
// gets them, or by the collectives that come behind them. INVALID_ARGUMENT, naming it: a tensor
// with gaps.
Status BroadcastTensors(Communicator& communicator, const std::vector<RootedTensor>& tensors,
                        std::chrono::nanoseconds timeout, DeviceLinks* links = nullptr,
                        std::vector<std::shared_ptr<Work>>* under_way = nullptr);

// Collective: rank 0's buffers (running averages and the like) on every rank, as above.
Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                        std::chrono::nanoseconds timeout, DeviceLinks* links = nullptr);

// Collective: see CheckEqualValues(); of parameters and buffers, on any device and of any type.
Result<uint64_t> CheckEqualState(Communicator& communicator, const torch::nn::Module& module,
                                 std::chrono::nanoseconds timeout);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_TENSORS_H_
