// Treats libtorch tensors as the plain memory that worker_runtime works on.
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

// nullopt if collectives do not support the type.
std::optional<DataType> DataTypeOf(torch::ScalarType type);
torch::ScalarType ScalarTypeOf(DataType type);

// UNIMPLEMENTED, naming the gradient and the rank, if it is sparse: a bucket has a place for every
// element, while ranks have different elements of a sparse gradient.
Status CheckDense(int rank, const std::string& name, const torch::Tensor& gradient);

// INVALID_ARGUMENT: the parameter is on the meta device.
Status CheckHasValues(const std::string& name, const torch::Tensor& parameter);

// The memory of a tensor on the host. INVALID_ARGUMENT, naming it: it is elsewhere, not contiguous,
// or of a type that collectives do not support.
Result<Buffer> BufferOf(const std::string& name, const torch::Tensor& tensor);

// The memory of a contiguous one-dimensional tensor of a supported type, on any device.
Buffer BufferOfFlat(const torch::Tensor& flat);

// Returns the reduction that averages `mine` over the ranks. It multiplies before the sum, so that
// the sum cannot overflow if the average does not. 16-bit tensors are multiplied here, since a
// communicator would round the factor, too. The same on all ranks: NCCL uses another operation for
// a sum without a factor.
Reduction AverageOf(torch::Tensor& mine, int ranks);

// The type in which gradients of type `own` are sent, which is never wider.
torch::ScalarType TypeSent(const PlainAverage& average, torch::ScalarType own);

// The elements of `flat` from `offset` on, in that shape. Not a view to autograd, which would not
// let zero_grad() detach it.
torch::Tensor PartOf(const torch::Tensor& flat, int64_t offset, torch::IntArrayRef sizes);

// Whether a Reducer works on the tensor's own memory: if it is float32 or float64 on the host.
bool IsReducible(const torch::Tensor& tensor);
// The type in which a tensor of `type` is reduced: float64 for float64, float32 for all others.
torch::ScalarType ReducedType(torch::ScalarType type);

// Tensors and the host memory by which collectives access them.
struct NamedTensors {
  std::vector<torch::Tensor> tensors;
  // Refer to the tensors' own memory, or to copies[i] if they are on a device or have 16 bits.
  std::vector<Parameter> parameters;
  // Undefined if the parameter refers to the tensor's own memory.
  std::vector<torch::Tensor> copies;

  // INVALID_ARGUMENT, naming it, if the tensor is undefined, sparse, or not of a floating point
  // type.
  Status Add(const std::string& name, const torch::Tensor& tensor);
  // Copy the tensors to the copies, and the copies to the tensors. Both wait for the devices.
  void CopyToHost() const;
  void CopyFromHost() const;
};

// The parameters that require a gradient, in the order of registration; one that is registered
// twice is listed once, under its first name. The copies are uninitialized.
Result<NamedTensors> TrainedParameters(const torch::nn::Module& module);

// A tensor whose bytes are taken from one rank.
struct RootedTensor {
  std::string name;
  torch::Tensor tensor;
  int root = 0;
};

// Collective: each tensor becomes its root's, bit for bit, whatever its type. All ranks pass the
// same ones in the same order. Those of one root and device share messages of up to 25 MiB; larger
// ones are sent alone, without a copy if possible. Tensors on devices that `links` connect are sent
// without the host, which does not wait for them: they are visible to later work on the calling
// thread's current streams, and errors become known later: by the works added to `under_way`, or by
// the following collectives. INVALID_ARGUMENT, naming it: a tensor is not contiguous.
Status BroadcastTensors(Communicator& communicator, const std::vector<RootedTensor>& tensors,
                        std::chrono::nanoseconds timeout, DeviceLinks* links = nullptr,
                        std::vector<std::shared_ptr<Work>>* under_way = nullptr);

// Collective: copies rank 0's buffers (running averages and the like) to every rank, as above.
Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                        std::chrono::nanoseconds timeout, DeviceLinks* links = nullptr);

// Collective: like CheckEqualValues(), for parameters and buffers on any device and of any type.
Result<uint64_t> CheckEqualState(Communicator& communicator, const torch::nn::Module& module,
                                 std::chrono::nanoseconds timeout);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_TENSORS_H_
