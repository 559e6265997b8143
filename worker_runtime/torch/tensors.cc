#include "cadre/torch/tensors.h"

#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

constexpr std::pair<DataType, torch::ScalarType> kTypes[] = {
    {DataType::kFloat32, torch::kFloat32}, {DataType::kFloat64, torch::kFloat64},
    {DataType::kFloat16, torch::kFloat16}, {DataType::kBfloat16, torch::kBFloat16},
    {DataType::kInt32, torch::kInt32},     {DataType::kInt64, torch::kInt64},
    {DataType::kUint8, torch::kUInt8},
};

}  // namespace

std::optional<DataType> DataTypeOf(torch::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

torch::ScalarType ScalarTypeOf(DataType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == type) return theirs;
  }
  return torch::ScalarType::Undefined;
}

Result<Buffer> BufferOf(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) return InvalidArgumentError("'" + name + "' is undefined");
  if (!tensor.device().is_cpu()) {
    return InvalidArgumentError("'" + name + "' is on " + tensor.device().str() +
                                "; expected a tensor in the host's memory");
  }
  if (tensor.layout() != torch::kStrided || !tensor.is_non_overlapping_and_dense()) {
    return InvalidArgumentError("'" + name +
                                "' is not one dense block of memory; pass a contiguous tensor");
  }
  const std::optional<DataType> type = DataTypeOf(tensor.scalar_type());
  if (!type) {
    return InvalidArgumentError("'" + name + "' is " + torch::toString(tensor.scalar_type()) +
                                ", which cannot be exchanged between ranks");
  }
  return Buffer{tensor.data_ptr(), static_cast<size_t>(tensor.numel()), *type};
}

Buffer BufferOfFlat(const torch::Tensor& flat) {
  return {flat.data_ptr(), static_cast<size_t>(flat.numel()), *DataTypeOf(flat.scalar_type())};
}

Reduction AverageOf(torch::Tensor& mine, int ranks) {
  const double factor = 1.0 / ranks;
  if (mine.scalar_type() != torch::kFloat16 && mine.scalar_type() != torch::kBFloat16) {
    return Reduction(ReduceOp::kSum, factor);
  }
  mine.mul_(factor);
  return ReduceOp::kSum;
}

torch::ScalarType TypeSent(const PlainAverage& average, torch::ScalarType own) {
  if (!average.travels_as || SizeOf(*average.travels_as) >= torch::elementSize(own)) return own;
  return ScalarTypeOf(*average.travels_as);
}

torch::Tensor PartOf(const torch::Tensor& flat, int64_t offset, torch::IntArrayRef sizes) {
  torch::Tensor part = torch::empty({0}, flat.options());
  part.set_(flat.storage(), offset, sizes);
  return part;
}

Status CheckDense(int rank, const std::string& name, const torch::Tensor& gradient) {
  if (!gradient.defined() || !gradient.is_sparse()) return OkStatus();
  return UnimplementedError("rank " + std::to_string(rank) + ": the gradient of '" + name +
                            "' is sparse, and only dense ones are reduced; build its module "
                            "without sparse gradients (EmbeddingOptions::sparse(false))");
}

bool IsReducible(const torch::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.scalar_type() == ReducedType(tensor.scalar_type());
}

torch::ScalarType ReducedType(torch::ScalarType type) {
  return type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

Status CheckHasValues(const std::string& name, const torch::Tensor& parameter) {
  if (!parameter.defined() || !parameter.is_meta()) return OkStatus();
  return InvalidArgumentError("parameter '" + name +
                              "' is on the meta device, where it has no values; InitializeOn() "
                              "gives it some (cadre/torch/meta_device.h)");
}

Status NamedTensors::Add(const std::string& name, const torch::Tensor& tensor) {
  CADRE_RETURN_IF_ERROR(CheckHasValues(name, tensor));
  const bool copied = tensor.defined() && !IsReducible(tensor) &&
                      tensor.layout() == torch::kStrided &&
                      torch::isFloatingType(tensor.scalar_type());
  torch::Tensor copy;
  if (copied) {
    copy = EmptyPinned(tensor.device(), tensor.sizes(), ReducedType(tensor.scalar_type()));
  }
  CADRE_ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(name, copied ? copy : tensor));
  tensors.push_back(tensor);
  parameters.push_back({name, buffer, tensor.sizes().vec()});
  if (copied) {
    // Which of several devices of a kind it is differs between ranks.
    parameters.back().kept_as = std::string(torch::toString(tensor.scalar_type())) + " on " +
                                torch::Device(tensor.device().type()).str();
    parameters.back().kept_as_float16 = tensor.scalar_type() == torch::kHalf;
  }
  copies.push_back(std::move(copy));
  return OkStatus();
}

void NamedTensors::CopyToHost() const {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (copies[i].defined()) copies[i].copy_(tensors[i]);
  }
}

void NamedTensors::CopyFromHost() const {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // An alias: autograd's checks are for those who compute with the parameter.
    if (copies[i].defined()) tensors[i].detach().copy_(copies[i]);
  }
}

Result<NamedTensors> TrainedParameters(const torch::nn::Module& module) {
  NamedTensors result;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    CADRE_RETURN_IF_ERROR(result.Add(item.key(), tensor));
  }
  return result;
}

Result<uint64_t> CheckEqualState(Communicator& communicator, const torch::nn::Module& module,
                                 std::chrono::nanoseconds timeout) {
  const torch::NoGradGuard no_grad;
  std::vector<Parameter> state;
  std::vector<torch::Tensor> copies;
  for (const auto& list : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : list) {
      if (!item.value().defined()) continue;
      if (item.value().layout() != torch::kStrided) {
        return InvalidArgumentError("'" + item.key() + "' is not dense, and cannot be compared");
      }
      // Of any type and layout: it is its bytes that are compared.
      copies.push_back(item.value().detach().cpu().contiguous());
      const torch::Tensor& value = copies.back();
      state.push_back(
          {item.key(), {value.data_ptr(), value.nbytes(), DataType::kUint8}, value.sizes().vec()});
    }
  }
  return CheckEqualValues(communicator, state, timeout);
}

}  // namespace cadre::nn
