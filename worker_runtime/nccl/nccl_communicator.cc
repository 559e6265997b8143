#include "worker_runtime/nccl/nccl_communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/nccl/device_collective.h"
#include "worker_runtime/nccl/device_memory.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_backend.h"
#include "worker_runtime/nccl/nccl_handle.h"
#include "worker_runtime/nccl/progress_thread.h"
#include "worker_runtime/nccl/varying_parts.h"

namespace cadre::nccl {

#ifdef CADRE_WITH_NCCL
namespace {

std::string Elements(const Buffer& buffer) {
  return absl::StrCat(buffer.count, " ", backend::Name(buffer.type));
}

void* At(const Buffer& buffer, size_t first) {
  return static_cast<char*>(buffer.data) + first * SizeOf(buffer.type);
}

class NcclBackend : public NcclCommunicator {
 public:
  static Result<std::unique_ptr<NcclCommunicator>> Create(std::shared_ptr<NcclHandle> handle,
                                                          const NcclOptions& options);
  ~NcclBackend() override;

  int rank() const override { return handle_->place().rank; }
  int size() const override { return handle_->place().size; }
  cuda::CudaStreamHandle stream() const override { return stream_; }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override;
  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override;
  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override;
  std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output, Span<const size_t> counts,
                                             Reduction reduction) override;
  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override;
  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override;
  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         Span<const size_t> counts) override;
  std::shared_ptr<Work> Barrier() override;
  std::shared_ptr<Work> Send(Buffer buffer, int to, int tag) override;
  std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag) override;
  Result<std::unique_ptr<Communicator>> Split(int color, int key) override;
  Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes) override;
  void Abort() override;

 private:
  using Call = std::function<ncclResult_t(ncclComm_t)>;

  NcclBackend(std::shared_ptr<NcclHandle> handle, const NcclOptions& options,
              std::unique_ptr<cuda::CudaStream> own_stream, std::shared_ptr<void> word)
      : handle_(std::move(handle)),
        options_(options),
        own_stream_(std::move(own_stream)),
        stream_(own_stream_ == nullptr ? *options_.stream : own_stream_->handle()),
        word_(std::move(word)),
        progress_(ProgressOptionsFor()) {}

  ProgressOptions ProgressOptionsFor();
  VaryingParts Parts(Buffer own, Buffer whole, Span<const size_t> counts) const {
    return {own, whole, std::vector<size_t>(counts.begin(), counts.end()), rank()};
  }
  // `call` is null where there is nothing to send.
  std::shared_ptr<Work> Start(const Status& check, std::string what, Call call);
  std::shared_ptr<Work> Fail(const Status& status, absl::string_view what);
  // Lowers the flag to the least of all ranks'.
  Result<bool> AllAgree(bool agrees);

  const std::shared_ptr<NcclHandle> handle_;
  const NcclOptions options_;
  // Null: it runs on the caller's.
  const std::unique_ptr<cuda::CudaStream> own_stream_;
  const cuda::CudaStreamHandle stream_;
  // An int32 on the GPU, for what only has to meet.
  const std::shared_ptr<void> word_;
  absl::Mutex agreement_mutex_;
  // Last, so that it stops first.
  ProgressThread progress_;
};

ProgressOptions NcclBackend::ProgressOptionsFor() {
  ProgressOptions options;
  options.timeout = options_.timeout;
  options.where = absl::StrCat(" on communicator \"", options_.name, "\"");
  // The thread's device stays as it is set here.
  options.begin = [this] { cuda::SetCudaDevice(handle_->place().device).IgnoreError(); };
  options.check_health = [this] { return handle_->CheckHealth(); };
  options.quiesce = [this] { handle_->Abort(kAbortWait).IgnoreError(); };
  return options;
}

Result<std::unique_ptr<NcclCommunicator>> NcclBackend::Create(std::shared_ptr<NcclHandle> handle,
                                                              const NcclOptions& options) {
  const cuda::CudaDeviceScope scope(handle->place().device);
  RETURN_IF_ERROR(scope.status());
  std::unique_ptr<cuda::CudaStream> own_stream;
  if (!options.stream) {
    ASSIGN_OR_RETURN(own_stream, cuda::CudaStream::Create());
  }
  ASSIGN_OR_RETURN(auto word, cuda::AllocateOnCudaDevice(sizeof(int32_t)));
  std::unique_ptr<NcclBackend> backend(
      new NcclBackend(std::move(handle), options, std::move(own_stream), std::move(word)));
  RETURN_IF_ERROR(
      cuda::FillOnCudaDevice(backend->word_.get(), 0, sizeof(int32_t), backend->stream_));
  return std::unique_ptr<NcclCommunicator>(std::move(backend));
}

NcclBackend::~NcclBackend() {
  if (progress_.status().ok() && progress_.idle()) handle_->Finish(MonoNow() + kFinishWait);
}

std::shared_ptr<Work> NcclBackend::Fail(const Status& status, absl::string_view what) {
  progress_.Fail(Status(status.code(), absl::StrCat(what, " on communicator \"", options_.name,
                                                    "\": ", status.message())));
  return FinishedWork(progress_.status());
}

std::shared_ptr<Work> NcclBackend::Start(const Status& check, std::string what, Call call) {
  if (!check.ok()) return Fail(check, what);
  const cuda::CudaDeviceScope scope(handle_->place().device);
  if (!scope.status().ok()) return Fail(scope.status(), what);
  const cuda::CudaStreamHandle producer = options_.stream ? stream_ : options_.producer();
  auto operation = MakeDeviceCollective(handle_, producer, stream_, std::move(call));
  if (!operation.ok()) return Fail(operation.status(), what);
  if (options_.stream) {
    const Status placed = (*operation)->Start(MonoNow() + absl::FromChrono(options_.timeout));
    if (!placed.ok()) return Fail(placed, what);
  }
  return progress_.Enqueue(std::move(what), *std::move(operation), options_.stream.has_value());
}

std::shared_ptr<Work> NcclBackend::AllReduce(Buffer buffer, Reduction reduction) {
  Status check = backend::CheckBuffer(buffer);
  check.Update(backend::CheckReduction(reduction, buffer.type));
  check.Update(NcclReduction::Check(reduction));
  Call call = [this, buffer, reduction](ncclComm_t own) {
    const NcclApi& api = handle_->api();
    const auto call = [&](ncclRedOp_t op, size_t first, size_t count) {
      void* const data = At(buffer, first);
      return api.AllReduce(data, data, count, NcclType(buffer.type), op, own,
                           static_cast<cudaStream_t>(stream()));
    };
    return NcclReduction::Over(api, own, reduction, buffer.type, buffer.count, call);
  };
  return Start(check,
               absl::StrCat("all-reduce (", backend::Name(reduction.op), ") of ", Elements(buffer)),
               buffer.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::Reduce(Buffer buffer, Reduction reduction, int root) {
  Status check = backend::CheckRoot(root, size());
  check.Update(backend::CheckBuffer(buffer));
  check.Update(backend::CheckReduction(reduction, buffer.type));
  check.Update(NcclReduction::Check(reduction));
  Call call = [this, buffer, reduction, root](ncclComm_t own) {
    const NcclApi& api = handle_->api();
    const auto call = [&](ncclRedOp_t op, size_t first, size_t count) {
      void* const data = At(buffer, first);
      return api.Reduce(data, data, count, NcclType(buffer.type), op, root, own,
                        static_cast<cudaStream_t>(stream()));
    };
    return NcclReduction::Over(api, own, reduction, buffer.type, buffer.count, call);
  };
  return Start(check,
               absl::StrCat("reduce (", backend::Name(reduction.op), ") to rank ", root, " of ",
                            Elements(buffer)),
               buffer.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::ReduceScatter(Buffer input, Buffer output, Reduction reduction) {
  Status check = backend::CheckScatter(input, output, size());
  check.Update(backend::CheckReduction(reduction, input.type));
  check.Update(NcclReduction::Check(reduction));
  Call call = [this, input, output, reduction](ncclComm_t own) {
    const NcclApi& api = handle_->api();
    const auto call = [&](ncclRedOp_t op, size_t first, size_t count) {
      return api.ReduceScatter(At(input, first), At(output, first), count, NcclType(output.type),
                               op, own, static_cast<cudaStream_t>(stream()));
    };
    // With several ranks it is called once, with the whole.
    return NcclReduction::Over(api, own, reduction, input.type, output.count, call);
  };
  return Start(
      check,
      absl::StrCat("reduce-scatter (", backend::Name(reduction.op), ") of ", Elements(input)),
      output.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::ReduceScatterVarying(Buffer input, Buffer output,
                                                        Span<const size_t> counts,
                                                        Reduction reduction) {
  Status check = backend::CheckVaryingScatter(input, output, counts, rank(), size());
  check.Update(backend::CheckReduction(reduction, input.type));
  check.Update(NcclReduction::Check(reduction));
  if (check.ok() && AreEqual(counts)) return ReduceScatter(input, output, reduction);
  Call call = [this, parts = Parts(output, input, counts), reduction](ncclComm_t own) {
    const NcclApi& api = handle_->api();
    return NcclReduction::With(api, own, reduction, parts.whole.type, [&](ncclRedOp_t op) {
      return ReduceScatterParts(api, own, parts, op, stream());
    });
  };
  return Start(check,
               absl::StrCat("reduce-scatter (", backend::Name(reduction.op), ") of varying ",
                            Elements(input)),
               input.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::Broadcast(Buffer buffer, int root) {
  Status check = backend::CheckRoot(root, size());
  check.Update(backend::CheckBuffer(buffer));
  Call call = [this, buffer, root](ncclComm_t own) {
    return handle_->api().Broadcast(buffer.data, buffer.data, buffer.count, NcclType(buffer.type),
                                    root, own, static_cast<cudaStream_t>(stream()));
  };
  return Start(check, absl::StrCat("broadcast from rank ", root, " of ", Elements(buffer)),
               buffer.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::AllGather(Buffer input, Buffer output) {
  Call call = [this, input, output](ncclComm_t own) {
    return handle_->api().AllGather(input.data, output.data, input.count, NcclType(input.type), own,
                                    static_cast<cudaStream_t>(stream()));
  };
  return Start(backend::CheckGather(input, output, size()),
               absl::StrCat("all-gather of ", Elements(input)),
               input.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::AllGatherVarying(Buffer input, Buffer output,
                                                    Span<const size_t> counts) {
  const Status check = backend::CheckVaryingGather(input, output, counts, rank(), size());
  if (check.ok() && AreEqual(counts)) return AllGather(input, output);
  Call call = [this, parts = Parts(input, output, counts)](ncclComm_t own) {
    return AllGatherParts(handle_->api(), own, parts, stream());
  };
  return Start(check, absl::StrCat("all-gather of varying ", Elements(output)),
               output.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::Barrier() {
  return Start(OkStatus(), "barrier", [this](ncclComm_t own) {
    return handle_->api().AllReduce(word_.get(), word_.get(), 1, ncclInt32, ncclMin, own,
                                    static_cast<cudaStream_t>(stream()));
  });
}

std::shared_ptr<Work> NcclBackend::Send(Buffer buffer, int to, int tag) {
  Status check = backend::CheckPeer(to, rank(), size());
  check.Update(backend::CheckBuffer(buffer));
  Call call = [this, buffer, to](ncclComm_t own) {
    return handle_->api().Send(buffer.data, buffer.count, NcclType(buffer.type), to, own,
                               static_cast<cudaStream_t>(stream()));
  };
  return Start(check, absl::StrCat("send to rank ", to, " (", tag, ") of ", Elements(buffer)),
               buffer.count > 0 ? std::move(call) : nullptr);
}

std::shared_ptr<Work> NcclBackend::Receive(Buffer buffer, int from, int tag) {
  Status check = backend::CheckPeer(from, rank(), size());
  check.Update(backend::CheckBuffer(buffer));
  Call call = [this, buffer, from](ncclComm_t own) {
    return handle_->api().Recv(buffer.data, buffer.count, NcclType(buffer.type), from, own,
                               static_cast<cudaStream_t>(stream()));
  };
  return Start(check,
               absl::StrCat("receive from rank ", from, " (", tag, ") of ", Elements(buffer)),
               buffer.count > 0 ? std::move(call) : nullptr);
}

Result<std::unique_ptr<Communicator>> NcclBackend::Split(int color, int key) {
  // Outlives this call should it end early.
  auto child = std::make_shared<std::shared_ptr<NcclHandle>>();
  const auto work = progress_.Enqueue(
      absl::StrCat("split by color ", color),
      MakeHostOperation([handle = handle_, color, key, child](MonoTime deadline) -> Status {
        ASSIGN_OR_RETURN(*child, handle->Split(color, key, deadline));
        return OkStatus();
      }));
  RETURN_IF_ERROR(WaitOrAbort(*this, work, 2 * options_.timeout));
  if (color < 0) return nullptr;
  NcclOptions options = options_;
  options.name = absl::StrCat(options_.name, "/", color);
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group, Create(*child, options));
  return group;
}

Result<bool> NcclBackend::AllAgree(bool agrees) {
  absl::MutexLock lock(&agreement_mutex_);
  int32_t flag = agrees ? 1 : 0;
  auto word = cuda::AllocateOnCudaDevice(sizeof(flag));
  // Without these bytes this rank cannot even say so; the others run into the deadline.
  RETURN_IF_ERROR(word.status());
  RETURN_IF_ERROR(cuda::CopyToCudaDevice(word->get(), &flag, sizeof(flag), stream()));
  const Buffer buffer = {word->get(), 1, DataType::kInt32};
  RETURN_IF_ERROR(WaitOrAbort(*this, AllReduce(buffer, ReduceOp::kMin), 2 * options_.timeout));
  RETURN_IF_ERROR(cuda::CopyFromCudaDevice(&flag, word->get(), sizeof(flag), stream()));
  RETURN_IF_ERROR(cuda::SynchronizeCudaStream(stream()));
  return flag == 1;
}

Result<std::shared_ptr<void>> NcclBackend::AllocateBuffer(size_t bytes) {
  const cuda::CudaDeviceScope scope(handle_->place().device);
  RETURN_IF_ERROR(scope.status());
  Result<std::shared_ptr<void>> memory =
      AllocateForNccl(handle_, bytes, MonoNow() + options_.timeout);
  if (memory.ok()) {
    const Status zeroed = cuda::FillOnCudaDevice(memory->get(), 0, bytes, stream());
    if (!zeroed.ok()) memory = zeroed;
  }
  ASSIGN_OR_RETURN(const bool all_have_it, AllAgree(memory.ok()));
  if (!memory.ok() || all_have_it) return memory;
  return ResourceExhaustedError(
      absl::StrCat("another rank has no ", bytes, " bytes of GPU memory"));
}

void NcclBackend::Abort() {
  // Whoever fails it first lets the thread out of NCCL; afterwards it is not in there.
  if (progress_.status().ok()) handle_->Interrupt();
  progress_.Fail(AbortedError(absl::StrCat("communicator \"", options_.name, "\" was aborted")));
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> MakeNcclCommunicator(std::shared_ptr<NcclHandle> handle,
                                                               const NcclOptions& options) {
  return NcclBackend::Create(std::move(handle), options);
}

#endif  // CADRE_WITH_NCCL

}  // namespace cadre::nccl
