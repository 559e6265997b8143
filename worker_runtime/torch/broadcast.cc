#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
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

// What small tensors fill together. As a bucket of gradients.
constexpr int64_t kMessageBytes = int64_t{25} << 20;
// On their way through the host at a time: one travels while the next is packed.
constexpr size_t kMessagesInFlight = 2;

// Bytes of tensors that share a root and a device.
struct Message {
  int root = 0;
  torch::Device device{torch::kCPU};
  // Each tensor as bytes, over its own memory.
  std::vector<torch::Tensor> pieces;
  int64_t count = 0;

  // One tensor's own memory, or new memory of `where`.
  torch::Tensor Memory(torch::Device where) const {
    if (pieces.size() == 1 && device == where) return pieces.front();
    return torch::empty({count}, torch::device(where).dtype(torch::kUInt8));
  }
  // `memory` may be that of the only piece.
  void Pack(torch::Tensor& memory) const {
    if (memory.is_same(pieces.front())) return;
    memory.copy_(pieces.size() == 1 ? pieces.front() : torch::cat(pieces));
  }
  void Unpack(const torch::Tensor& memory) const {
    if (memory.is_same(pieces.front())) return;
    const torch::Tensor here = memory.to(device);
    int64_t offset = 0;
    for (const torch::Tensor& piece : pieces) {
      piece.copy_(here.narrow(0, offset, piece.numel()));
      offset += piece.numel();
    }
  }
};

Result<std::vector<Message>> MessagesOf(const std::vector<RootedTensor>& tensors) {
  std::vector<Message> result;
  for (const RootedTensor& rooted : tensors) {
    const torch::Tensor& tensor = rooted.tensor;
    if (!tensor.defined() || tensor.numel() == 0) continue;
    // Any type will do: what travels is bytes.
    if (tensor.layout() != torch::kStrided || !tensor.is_non_overlapping_and_dense()) {
      return InvalidArgumentError("'" + rooted.name +
                                  "' is not one dense block of memory; pass a contiguous tensor");
    }
    const torch::Tensor flat = tensor.detach().as_strided({tensor.numel()}, {1});
    const torch::Tensor bytes = flat.view(torch::kUInt8);
    const auto has_room = [&](const Message& message) {
      return message.root == rooted.root && message.device == tensor.device() &&
             message.count + bytes.numel() <= kMessageBytes;
    };
    auto message = std::find_if(result.begin(), result.end(), has_room);
    if (message == result.end()) {
      message = result.insert(message, {rooted.root, tensor.device(), {}, 0});
    }
    message->pieces.push_back(bytes);
    message->count += bytes.numel();
  }
  return result;
}

Buffer BufferOfBytes(const torch::Tensor& memory) {
  return {memory.data_ptr(), static_cast<size_t>(memory.numel()), DataType::kUint8};
}

// Behind what the calling thread's current stream was given, and before what it will be.
std::shared_ptr<Work> BroadcastOnDevice(Communicator& communicator, DeviceStream& stream,
                                        const Message& message) {
  if (const auto current = stream.Current()) stream.WaitFor(*current);
  std::shared_ptr<Work> work;
  {
    const DeviceStream::Scope on(stream);
    const bool mine = communicator.rank() == message.root;
    torch::Tensor memory = message.Memory(message.device);
    if (mine) message.Pack(memory);
    work = communicator.Broadcast(BufferOfBytes(memory), message.root);
    if (!mine) message.Unpack(memory);
  }
  stream.CurrentWaits();
  return work;
}

// Messages that go through the host's memory, some of them at a time.
class HostBroadcasts {
 public:
  HostBroadcasts(Communicator& communicator, std::chrono::nanoseconds timeout)
      : communicator_(communicator), timeout_(timeout) {}
  // None of them may outlive its memory.
  ~HostBroadcasts() { (void)Finish(); }

  Status Start(const Message& message) {
    if (flying_.size() == kMessagesInFlight) CADRE_RETURN_IF_ERROR(FinishFirst());
    torch::Tensor memory = message.Memory(torch::kCPU);
    if (communicator_.rank() == message.root) message.Pack(memory);
    auto work = communicator_.Broadcast(BufferOfBytes(memory), message.root);
    flying_.push_back({&message, std::move(memory), std::move(work)});
    return OkStatus();
  }

  Status Finish() {
    Status status;
    while (!flying_.empty()) status.Update(FinishFirst());
    return status;
  }

 private:
  struct Flying {
    const Message* message;
    torch::Tensor memory;
    std::shared_ptr<Work> work;
  };

  Status FinishFirst() {
    const Flying first = std::move(flying_.front());
    flying_.pop_front();
    CADRE_RETURN_IF_ERROR(WaitOrAbort(communicator_, first.work, timeout_));
    if (communicator_.rank() != first.message->root) first.message->Unpack(first.memory);
    return OkStatus();
  }

  Communicator& communicator_;
  const std::chrono::nanoseconds timeout_;
  std::deque<Flying> flying_;
};

}  // namespace

Status BroadcastTensors(Communicator& communicator, const std::vector<RootedTensor>& tensors,
                        std::chrono::nanoseconds timeout, DeviceLinks* links,
                        std::vector<std::shared_ptr<Work>>* under_way) {
  if (communicator.size() == 1) return OkStatus();
  const torch::NoGradGuard no_grad;
  CADRE_ASSIGN_OR_RETURN(const std::vector<Message> messages, MessagesOf(tensors));
  HostBroadcasts by_host(communicator, timeout);
  for (const Message& message : messages) {
    Communicator* const own = links == nullptr ? nullptr : links->CommunicatorOf(message.device);
    if (own == nullptr) {
      CADRE_RETURN_IF_ERROR(by_host.Start(message));
      continue;
    }
    const auto work = BroadcastOnDevice(*own, links->StreamOf(message.device), message);
    if (work->done()) CADRE_RETURN_IF_ERROR(work->Wait(std::chrono::nanoseconds(0)));
    if (under_way != nullptr) under_way->push_back(work);
  }
  return by_host.Finish();
}

Status BroadcastBuffers(Communicator& communicator, const torch::nn::Module& module,
                        std::chrono::nanoseconds timeout, DeviceLinks* links) {
  std::vector<RootedTensor> buffers;
  for (const auto& item : module.named_buffers()) buffers.push_back({item.key(), item.value(), 0});
  return BroadcastTensors(communicator, buffers, timeout, links);
}

}  // namespace cadre::nn
