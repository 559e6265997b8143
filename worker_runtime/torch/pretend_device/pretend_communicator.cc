#include "worker_runtime/torch/pretend_device/pretend_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

#include "cadre/status_macros.h"
#include "torch/types.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/queue.h"

namespace cadre::pretend {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

size_t BytesOf(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }

std::shared_ptr<Work> Lacking() {
  return FinishedWork(UnimplementedError("pretend devices have no barriers"));
}

class PretendCommunicator : public Communicator {
 public:
  PretendCommunicator(std::unique_ptr<Communicator> host, c10::Stream stream)
      : host_(std::move(host)), stream_(stream) {}
  // The queued jobs refer to the object, so it waits for them.
  ~PretendCommunicator() override {
    if (!QueueOf(stream_).idle()) host_->Abort();
    QueueOf(stream_).Synchronize();
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    return Enqueue(buffer, buffer, [this, reduction](const Buffer& there, const Buffer&) {
      return host_->AllReduce(there, reduction);
    });
  }
  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    return Enqueue(buffer, buffer, [this, root](const Buffer& there, const Buffer&) {
      return host_->Broadcast(there, root);
    });
  }

  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    return Enqueue(buffer, buffer, [this, reduction, root](const Buffer& there, const Buffer&) {
      return host_->Reduce(there, reduction, root);
    });
  }
  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    return Enqueue(input, output, [this, reduction](const Buffer& from, const Buffer& to) {
      return host_->ReduceScatter(from, to, reduction);
    });
  }
  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    return Enqueue(input, output, [this](const Buffer& from, const Buffer& to) {
      return host_->AllGather(from, to);
    });
  }

  Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes) override {
    const torch::Tensor memory =
        torch::zeros({static_cast<int64_t>(bytes)},
                     torch::TensorOptions().dtype(torch::kUInt8).device(stream_.device()));
    UsedOn(memory.data_ptr(), QueueOf(stream_));
    // The memory is freed at once, even if jobs still read it, as NCCL's memory is.
    return std::shared_ptr<void>(memory.data_ptr(), [memory](void* data) {
      std::memset(AsDeviceSeesIt(data), 0xff, memory.nbytes());
    });
  }

  std::shared_ptr<Work> Barrier() override { return Lacking(); }
  void Abort() override { host_->Abort(); }

 private:
  using Call = std::function<std::shared_ptr<Work>(const Buffer& from, const Buffer& to)>;

  std::shared_ptr<Work> Enqueue(Buffer from, Buffer to, const Call& call) {
    auto work = std::make_shared<Work>();
    for (Buffer* const buffer : {&from, &to}) {
      if (buffer->count > 0) buffer->data = AsDeviceSeesIt(buffer->data);
    }
    const size_t bytes = std::max(BytesOf(from), BytesOf(to));
    QueueOf(stream_).Push([this, from, to, bytes, call, work, costs = GetCosts()] {
      Status status = call(from, to)->Wait(kLong);
      if (status.ok() && costs.HaveBus()) status = TakeTime(costs.OfCollective(bytes));
      work->Complete(status, std::chrono::nanoseconds(0));
    });
    return work;
  }

  // A collective begins when the last rank has reached it.
  Status TakeTime(double seconds) {
    Queue& queue = QueueOf(stream_);
    double begin = queue.now();
    const Buffer time = {&begin, 1, DataType::kFloat64};
    CADRE_RETURN_IF_ERROR(host_->AllReduce(time, ReduceOp::kMax)->Wait(kLong));
    queue.AdvanceTo(begin + seconds);
    return OkStatus();
  }

  const std::unique_ptr<Communicator> host_;
  const c10::Stream stream_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectPretendDevices(Communicator& host,
                                                            nn::DeviceStream& stream) {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> own, host.Split(0, host.rank()));
  const nn::DeviceStream::Scope on(stream);
  return std::unique_ptr<Communicator>(
      std::make_unique<PretendCommunicator>(std::move(own), *stream.Current()));
}

}  // namespace cadre::pretend
