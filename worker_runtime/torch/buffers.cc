#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/device_links.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// Bytes of the buffers of one device, in the order in which they were registered.
struct DeviceBytes {
  torch::Device device{torch::kCPU};
  // Each buffer as bytes, over its own memory.
  std::vector<torch::Tensor> pieces;
  int64_t count = 0;
};

Result<std::vector<DeviceBytes>> BytesOfBuffers(const torch::nn::Module& module) {
  std::vector<DeviceBytes> result;
  for (const auto& item : module.named_buffers()) {
    const torch::Tensor& buffer = item.value();
    if (!buffer.defined() || buffer.numel() == 0) continue;
    // Any type will do: what travels is bytes.
    if (buffer.layout() != torch::kStrided || !buffer.is_non_overlapping_and_dense()) {
      return BufferOf(item.key(), buffer).status();
    }
    const auto same = [&](const DeviceBytes& bytes) { return bytes.device == buffer.device(); };
    auto bytes = std::find_if(result.begin(), result.end(), same);
    if (bytes == result.end()) bytes = result.insert(bytes, {buffer.device(), {}, 0});
    const torch::Tensor flat = buffer.detach().as_strided({buffer.numel()}, {1});
    bytes->pieces.push_back(flat.view(torch::kUInt8));
    bytes->count += bytes->pieces.back().numel();
  }
  return result;
}

void CopyToPieces(const torch::Tensor& message, const DeviceBytes& bytes) {
  int64_t offset = 0;
  for (const torch::Tensor& piece : bytes.pieces) {
    piece.copy_(message.narrow(0, offset, piece.numel()));
    offset += piece.numel();
  }
}

// Behind what the calling thread's current stream was given, and before what it will be.
Status BroadcastOnDevice(Communicator& communicator, DeviceStream& stream,
                         const DeviceBytes& bytes) {
  if (const auto current = stream.Current()) stream.WaitFor(*current);
  {
    const DeviceStream::Scope on(stream);
    const bool first = communicator.rank() == 0;
    const auto options = bytes.pieces.front().options();
    const torch::Tensor message =
        first ? torch::cat(bytes.pieces) : torch::empty({bytes.count}, options);
    const auto work = communicator.Broadcast(
        {message.data_ptr(), static_cast<size_t>(bytes.count), DataType::kUint8}, 0);
    // Later the gradients' collectives tell, which come behind it.
    if (work->done()) CADRE_RETURN_IF_ERROR(work->Wait(std::chrono::nanoseconds(0)));
    if (!first) CopyToPieces(message, bytes);
  }
  stream.CurrentWaits();
  return OkStatus();
}

Status BroadcastByHost(Communicator& communicator, const std::vector<DeviceBytes>& devices,
                       std::chrono::nanoseconds timeout) {
  int64_t count = 0;
  for (const DeviceBytes& bytes : devices) count += bytes.count;
  if (count == 0) return OkStatus();
  const torch::Tensor message = torch::empty({count}, torch::kUInt8);
  int64_t at = 0;
  for (const DeviceBytes& bytes : devices) {
    if (communicator.rank() == 0)
      message.narrow(0, at, bytes.count).copy_(torch::cat(bytes.pieces));
    at += bytes.count;
  }
  CADRE_ASSIGN_OR_RETURN(const Buffer buffer, BufferOf("buffers", message));
  CADRE_RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Broadcast(buffer, 0), timeout));
  if (communicator.rank() == 0) return OkStatus();
  at = 0;
  for (const DeviceBytes& bytes : devices) {
    CopyToPieces(message.narrow(0, at, bytes.count).to(bytes.device), bytes);
    at += bytes.count;
  }
  return OkStatus();
}

}  // namespace

Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                        std::chrono::nanoseconds timeout, DeviceLinks* links) {
  if (communicator.size() == 1) return OkStatus();
  const torch::NoGradGuard no_grad;
  CADRE_ASSIGN_OR_RETURN(const std::vector<DeviceBytes> devices, BytesOfBuffers(module));
  std::vector<DeviceBytes> others;
  for (const DeviceBytes& bytes : devices) {
    Communicator* const own = links == nullptr ? nullptr : links->CommunicatorOf(bytes.device);
    if (own == nullptr) {
      others.push_back(bytes);
    } else {
      CADRE_RETURN_IF_ERROR(BroadcastOnDevice(*own, links->StreamOf(bytes.device), bytes));
    }
  }
  return BroadcastByHost(communicator, others, timeout);
}

}  // namespace cadre::nn
