#include "cadre/torch/tensors.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/gradient_checks.h"

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
    // The device's index is left out because it differs between ranks.
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
    // detach() makes an alias, because autograd forbids in-place changes of a parameter that
    // requires gradients.
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
      // Any type and layout will do, because bytes are compared.
      copies.push_back(item.value().detach().cpu().contiguous());
      const torch::Tensor& value = copies.back();
      state.push_back(
          {item.key(), {value.data_ptr(), value.nbytes(), DataType::kUint8}, value.sizes().vec()});
    }
  }
  return CheckEqualValues(communicator, state, timeout);
}

namespace {

// Small tensors are packed into messages of this size, that of a bucket of gradients.
constexpr int64_t kMessageBytes = int64_t{25} << 20;
// The number of messages that go through the host at a time: one is sent while the next is packed.
constexpr size_t kMessagesInFlight = 2;

// The bytes of tensors that share a root and a device.
struct Message {
  int root = 0;
  torch::Device device{torch::kCPU};
  // Each tensor as bytes, over its own memory.
  std::vector<torch::Tensor> pieces;
  int64_t count = 0;

  // Returns the tensor's own memory if there is only one piece on `where`, else new memory there.
  torch::Tensor Memory(torch::Device where) const {
    if (pieces.size() == 1 && device == where) return pieces.front();
    return torch::empty({count}, torch::device(where).dtype(torch::kUInt8));
  }
  // `memory` may be the memory of the only piece.
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
    // Any type will do, because bytes are sent.
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

// The broadcast runs after the work that is queued on the calling thread's current stream, and
// before work that will be.
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

// Broadcasts messages through the host's memory, a few at a time.
class HostBroadcasts {
 public:
  HostBroadcasts(Communicator& communicator, std::chrono::nanoseconds timeout)
      : communicator_(communicator), timeout_(timeout) {}
  // No broadcast may outlive its memory.
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

FiniteCheck::FiniteCheck(const DeviceStream* stream, const torch::Tensor& like, bool sticky)
    : stream_(*stream),
      sticky_(sticky),
      found_(torch::zeros({}, like.options().dtype(torch::kInt64).requires_grad(false))),
      host_(EmptyPinned(like.device(), {1}, torch::kInt64)) {
  host_.zero_();
}

void FiniteCheck::Check(const torch::Tensor& flat) {
  const DeviceStream::Scope on(stream_);
  // max() and min() return a NaN if there is one; a NaN or an infinity minus itself is not zero.
  const auto [greatest, at_greatest] = flat.max(0);
  const auto [least, at_least] = flat.min(0);
  const torch::Tensor value = torch::stack({greatest, least});
  const torch::Tensor at = torch::stack({at_greatest, at_least});
  const torch::Tensor found = ((at + 1) * (value - value).ne(0)).max();
  found_.copy_(sticky_ ? torch::max(found, found_) : found);
  host_.copy_(found_.view({1}), /*non_blocking=*/true);
  checked_ = stream_.Here();
}

std::optional<int64_t> FiniteCheck::found() const {
  // The device may be writing this value, so it is read atomically.
  const int64_t found = __atomic_load_n(host_.data_ptr<int64_t>(), __ATOMIC_RELAXED);
  if (found == 0) return std::nullopt;
  return found - 1;
}

namespace {

// The value that torch::nn::utils::clip_grad_norm_ uses.
constexpr double kLeastNorm = 1e-6;

// NaN counts as larger than every number, although it compares with none.
double LargerOf(double a, double b) { return b <= a ? a : b; }

}  // namespace

Status CheckNorm(double max_norm, double norm_type) {
  if (max_norm >= 0 && norm_type > 0) return OkStatus();
  return InvalidArgumentError("ClipGradNorm(" + std::to_string(max_norm) + ", " +
                              std::to_string(norm_type) +
                              "): the norm must be at least 0, and its type more than 0");
}

Result<double> NormOverRanks(Communicator& communicator, const std::vector<torch::Tensor>& mine,
                             double norm_type, std::chrono::nanoseconds timeout) {
  const bool largest = std::isinf(norm_type);
  std::map<std::string, std::vector<torch::Tensor>> norms;
  for (const torch::Tensor& grad : mine) {
    if (grad.numel() == 0) continue;
    const torch::Tensor norm =
        largest ? grad.abs().max() : torch::norm(grad, norm_type, ReducedType(grad.scalar_type()));
    norms[grad.device().str()].push_back(norm.to(torch::kFloat64));
  }
  double here = 0;
  for (const auto& [device, list] : norms) {
    const torch::Tensor all = torch::stack(list).cpu();
    const double there = (largest ? all.max() : all.pow(norm_type).sum()).item<double>();
    here = largest ? LargerOf(here, there) : here + there;
  }
  std::vector<double> everyones(static_cast<size_t>(communicator.size()));
  CADRE_RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({&here, 1, DataType::kFloat64},
                                         {everyones.data(), everyones.size(), DataType::kFloat64}),
                  timeout));
  double total = 0;
  for (const double one : everyones) total = largest ? LargerOf(total, one) : total + one;
  return largest ? total : std::pow(total, 1 / norm_type);
}

void ClipToNorm(const std::vector<torch::Tensor>& gradients, double total, double max_norm) {
  const double factor = max_norm / (total + kLeastNorm);
  if (factor >= 1) return;
  for (const torch::Tensor& grad : gradients) torch::Tensor(grad).mul_(factor);
}

}  // namespace cadre::nn
