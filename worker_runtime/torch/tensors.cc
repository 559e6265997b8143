#include "cadre/torch/tensors.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/wait_or_abort.h"

namespace cadre::nn {
namespace {

std::optional<DataType> TypeOf(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return DataType::kFloat32;
    case torch::kFloat64:
      return DataType::kFloat64;
    case torch::kFloat16:
      return DataType::kFloat16;
    case torch::kInt32:
      return DataType::kInt32;
    case torch::kInt64:
      return DataType::kInt64;
    case torch::kUInt8:
      return DataType::kUint8;
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<Buffer> BufferOf(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) return InvalidArgumentError("'" + name + "' is undefined");
  if (!tensor.device().is_cpu()) {
    return InvalidArgumentError("'" + name + "' is on " + tensor.device().str() +
                                "; data-parallel parameters must be on the CPU");
  }
  if (tensor.layout() != torch::kStrided || !tensor.is_non_overlapping_and_dense()) {
    return InvalidArgumentError("'" + name +
                                "' is not one dense block of memory; pass a contiguous tensor");
  }
  const std::optional<DataType> type = TypeOf(tensor.scalar_type());
  if (!type) {
    return InvalidArgumentError("'" + name + "' is " + torch::toString(tensor.scalar_type()) +
                                ", which cannot be exchanged between ranks");
  }
  return Buffer{tensor.data_ptr(), static_cast<size_t>(tensor.numel()), *type};
}

Result<NamedTensors> TrainedParameters(const torch::nn::Module& module) {
  NamedTensors result;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    CADRE_ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(item.key(), tensor));
    result.tensors.push_back(tensor);
    result.parameters.push_back({item.key(), buffer, tensor.sizes().vec()});
  }
  return result;
}

Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                        std::chrono::nanoseconds timeout) {
  std::vector<Buffer> pieces;
  size_t bytes = 0;
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined() || item.value().numel() == 0) continue;
    // Any type will do: what travels is bytes.
    if (!item.value().device().is_cpu() || !item.value().is_non_overlapping_and_dense()) {
      return BufferOf(item.key(), item.value()).status();
    }
    pieces.push_back({item.value().data_ptr(), item.value().nbytes(), DataType::kUint8});
    bytes += item.value().nbytes();
  }
  if (bytes == 0 || communicator.size() == 1) return OkStatus();
  std::vector<char> message(bytes);
  char* at = message.data();
  for (const Buffer& piece : pieces) {
    std::memcpy(at, piece.data, piece.count);
    at += piece.count;
  }
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      communicator, communicator.Broadcast({message.data(), bytes, DataType::kUint8}, 0), timeout));
  if (communicator.rank() == 0) return OkStatus();
  at = message.data();
  for (const Buffer& piece : pieces) {
    std::memcpy(piece.data, at, piece.count);
    at += piece.count;
  }
  return OkStatus();
}

Result<uint64_t> CheckEqualState(Communicator& communicator, const torch::nn::Module& module,
                                 std::chrono::nanoseconds timeout) {
  std::vector<Parameter> state;
  for (const auto& list : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : list) {
      if (!item.value().defined()) continue;
      CADRE_ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(item.key(), item.value()));
      state.push_back({item.key(), buffer, item.value().sizes().vec()});
    }
  }
  return CheckEqualValues(communicator, state, timeout);
}

}  // namespace cadre::nn
