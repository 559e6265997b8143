#include "worker_runtime/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/nccl/connect.h"
#include "cadre/nccl/unique_id.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/nccl/device_collective.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_handle.h"
#include "worker_runtime/nccl/progress_thread.h"
#include "worker_runtime/nccl/root_ids.h"

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
  // `call` is null if there is nothing to send.
  std::shared_ptr<Work> Start(const Status& check, std::string what, Call call);
  std::shared_ptr<Work> Fail(const Status& status, absl::string_view what);
  // Returns true if `agrees` is true on all ranks.
  Result<bool> AllAgree(bool agrees);

  const std::shared_ptr<NcclHandle> handle_;
  const NcclOptions options_;
  // Null if operations run on the caller's stream.
  const std::unique_ptr<cuda::CudaStream> own_stream_;
  const cuda::CudaStreamHandle stream_;
  // An int32 on the GPU, for barriers.
  const std::shared_ptr<void> word_;
  absl::Mutex agreement_mutex_;
  // This is the last member, so it stops first.
  ProgressThread progress_;
};

ProgressOptions NcclBackend::ProgressOptionsFor() {
  ProgressOptions options;
  options.timeout = options_.timeout;
  options.where = absl::StrCat(" on communicator \"", options_.name, "\"");
  // The device that is set here stays current on the thread.
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
    // With several ranks `call` is made once, for all elements.
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
  // Shared with the operation, which may still run when this call returns early.
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
  // Without these bytes this rank cannot take part in the reduction; the others reach the deadline.
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
  // The first failure makes the thread leave NCCL; after that it does not enter it again.
  if (progress_.status().ok()) handle_->Interrupt();
  progress_.Fail(AbortedError(absl::StrCat("communicator \"", options_.name, "\" was aborted")));
}

}  // namespace

#endif  // CADRE_WITH_NCCL

// How ranks form a communicator: through a worker's store, by an id that they have, or over a
// communicator of the host.

#ifdef CADRE_WITH_NCCL
namespace {

// Returns this rank's GPU, or the reason why it has none.
Result<int> ChooseDevice(const Worker& worker, const NcclOptions& options) {
  ASSIGN_OR_RETURN(const int devices, cuda::CountCudaDevices());
  const int device = options.device >= 0 ? options.device : worker.place().local_rank;
  if (device < devices) return device;
  return FailedPreconditionError(absl::StrCat("local rank ", worker.place().local_rank,
                                              " needs GPU ", device, ", but only ", devices,
                                              " are visible; start no more workers than GPUs"));
}

Result<std::unique_ptr<NcclCommunicator>> Form(const NcclApi& api, const NcclHandle::Place& place,
                                               const std::vector<std::string>& ids,
                                               MonoTime deadline,
                                               const NcclHandle::PeriodicCheck& look,
                                               const NcclOptions& options) {
  const cuda::CudaDeviceScope scope(place.device);
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(auto handle, NcclHandle::Form(api, place, ids, deadline, look));
  return NcclBackend::Create(std::move(handle), options);
}

Result<std::unique_ptr<NcclCommunicator>> Join(Worker& worker, const NcclOptions& options,
                                               MonoTime deadline, Formation* formation) {
  ASSIGN_OR_RETURN(const NcclApi* const api, LoadNcclApi());
  NcclHandle::Place place;
  place.rank = worker.rank();
  place.size = worker.world_size();
  ASSIGN_OR_RETURN(place.device, ChooseDevice(worker, options));
  const int roots = RootCount(place.size, api->CommInitRankScalable != nullptr);
  ASSIGN_OR_RETURN(const auto ids, formation->ShareIds(roots, deadline));
  return Form(
      *api, place, ids, deadline, [&] { return formation->CheckForFailure(); }, options);
}

// Returns the GPU that the options name, or otherwise the current one.
Result<int> DeviceOf(const NcclOptions& options) {
  ASSIGN_OR_RETURN(const int devices, cuda::CountCudaDevices());
  int device = options.device;
  if (device < 0) {
    ASSIGN_OR_RETURN(device, cuda::CurrentCudaDevice());
  }
  if (device < devices) return device;
  return FailedPreconditionError(
      absl::StrCat("there is no GPU ", device, ": ", devices, " are visible"));
}

Result<std::unique_ptr<NcclCommunicator>> JoinByIds(const std::vector<std::string>& ids, int rank,
                                                    int size, const NcclOptions& options) {
  const MonoTime deadline = MonoNow() + options.timeout;
  ASSIGN_OR_RETURN(const NcclApi* const api, LoadNcclApi());
  ASSIGN_OR_RETURN(const int device, DeviceOf(options));
  return Form(*api, {rank, size, device}, ids, deadline, nullptr, options);
}

// Returns the kernel's boot id, which all containers of a machine share. NCCL_HOSTID overrides it,
// as it does in NCCL.
std::string MachineId() {
  const char* const variable = std::getenv("NCCL_HOSTID");
  if (variable != nullptr) return variable;
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// Makes this rank's message for forming a communicator over `host`.
NcclOffer MakeOffer(const Communicator& host, const NcclOptions& options) {
  NcclOffer offer;
  const auto make = [&]() -> Status {
    ASSIGN_OR_RETURN(const NcclApi* const api, LoadNcclApi());
    ASSIGN_OR_RETURN(const int device, DeviceOf(options));
    ASSIGN_OR_RETURN(const std::string bus, cuda::CudaBusId(device));
    offer.gpu = absl::StrCat(MachineId(), " ", bus);
    const int roots = RootCount(host.size(), api->CommInitRankScalable != nullptr);
    if (!RankHasRoot(host.rank(), host.size(), roots)) return OkStatus();
    ASSIGN_OR_RETURN(offer.id, MintNcclUniqueId());
    return OkStatus();
  };
  offer.status = make();
  return offer;
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> ConnectNccl(Worker& worker, const NcclOptions& options) {
  const MonoTime deadline = MonoNow() + options.timeout;
  ASSIGN_OR_RETURN(Formation formation, Formation::Begin(worker, options.name));
  auto communicator = Join(worker, options, deadline, &formation);
  if (communicator.ok()) return communicator;
  formation.ReportFailure(communicator.status());
  return Status(communicator.status().code(),
                absl::StrCat("connecting communicator \"", options.name, "\" as rank ",
                             worker.rank(), ": ", communicator.status().message()));
}

#else
namespace {

Result<std::unique_ptr<NcclCommunicator>> JoinByIds(const std::vector<std::string>&, int, int,
                                                    const NcclOptions&) {
  return NcclUnavailable();
}

NcclOffer MakeOffer(const Communicator&, const NcclOptions&) { return {NcclUnavailable(), "", ""}; }

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> ConnectNccl(Worker&, const NcclOptions&) {
  return NcclUnavailable();
}

#endif

Result<std::unique_ptr<Communicator>> ConnectNccl(std::string_view id, int rank, int size,
                                                  const NcclOptions& options) {
  if (id.size() != kNcclUniqueIdBytes) {
    return InvalidArgumentError(
        absl::StrCat("an NCCL id has ", kNcclUniqueIdBytes, " bytes, not ", id.size()));
  }
  if (rank < 0 || rank >= size) {
    return InvalidArgumentError(absl::StrCat(
        "rank ", rank, " of ", size,
        " cannot connect by an NCCL id: a rank is 0 or more, and less than the number of ranks"));
  }
  Result<std::unique_ptr<NcclCommunicator>> joined =
      JoinByIds({std::string(id)}, rank, size, options);
  if (joined.ok()) return std::unique_ptr<Communicator>(*std::move(joined));
  return Status(joined.status().code(),
                absl::StrCat("connecting communicator \"", options.name, "\" as rank ", rank,
                             " of ", size, ": ", joined.status().message()));
}

namespace {

// Returns all ranks' messages, concatenated.
Result<std::string> Exchange(Communicator& host, std::string message,
                             std::chrono::nanoseconds timeout) {
  std::string all(message.size() * static_cast<size_t>(host.size()), '\0');
  const Buffer own = {message.data(), message.size(), DataType::kUint8};
  const Buffer gathered = {all.data(), all.size(), DataType::kUint8};
  RETURN_IF_ERROR(WaitOrAbort(host, host.AllGather(own, gathered), timeout));
  return all;
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectNccl(Communicator& host, const NcclOptions& options) {
  const auto told = [&](const Status& status) {
    return Status(status.code(), absl::StrCat("connecting communicator \"", options.name,
                                              "\" by NCCL: ", status.message()));
  };
  const auto offers = Exchange(host, WriteNcclOffer(MakeOffer(host, options)), options.timeout);
  if (!offers.ok()) return told(offers.status());
  const auto ids = AgreeOnNcclIds(*offers);
  if (!ids.ok()) return told(ids.status());
  Result<std::unique_ptr<NcclCommunicator>> joined =
      JoinByIds(*ids, host.rank(), host.size(), options);
  // If one rank could not join, the others must not keep a communicator in which it does not
  // answer.
  const NcclOffer outcome{joined.status(), "", ""};
  // The timeout is doubled because another rank may have waited its whole timeout in NCCL.
  const auto outcomes = Exchange(host, WriteNcclOffer(outcome), 2 * options.timeout);
  if (!outcomes.ok()) return told(outcomes.status());
  const Status all = AgreeOnNcclIds(*outcomes).status();
  if (!all.ok()) return told(all);
  return std::unique_ptr<Communicator>(*std::move(joined));
}

namespace {

// The id, or padding, comes first because it may contain any byte; then "CODE\nGPU\nMESSAGE".
constexpr char kWithId = 'i';
constexpr char kWithoutId = '-';
constexpr size_t kTextBegins = 1 + kNcclUniqueIdBytes;

Result<NcclOffer> ReadNcclOffer(absl::string_view message) {
  NcclOffer offer;
  if (message[0] == kWithId) offer.id = std::string(message.substr(1, kNcclUniqueIdBytes));
  const absl::string_view padded = message.substr(kTextBegins);
  const std::vector<std::string> fields =
      absl::StrSplit(padded.substr(0, padded.find('\0')), absl::MaxSplits('\n', 2));
  int code = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &code)) {
    return InternalError("a rank's offer for NCCL cannot be read");
  }
  offer.status = Status(static_cast<StatusCode>(code), fields[2]);
  offer.gpu = fields[1];
  return offer;
}

}  // namespace

std::string WriteNcclOffer(const NcclOffer& offer) {
  std::string message(1, offer.id.empty() ? kWithoutId : kWithId);
  message += offer.id;
  message.resize(kTextBegins);
  absl::StrAppend(&message, static_cast<int>(offer.status.code()), "\n", offer.gpu, "\n",
                  offer.status.message());
  message.resize(kNcclOfferBytes - 1);
  message.push_back('\0');
  return message;
}

Result<std::vector<std::string>> AgreeOnNcclIds(const std::string& messages) {
  std::vector<std::string> ids;
  std::map<std::string, size_t> ranks;
  Status shared;
  for (size_t rank = 0; rank < messages.size() / kNcclOfferBytes; ++rank) {
    ASSIGN_OR_RETURN(NcclOffer offer, ReadNcclOffer(absl::string_view(messages).substr(
                                          rank * kNcclOfferBytes, kNcclOfferBytes)));
    if (!offer.status.ok()) {
      return Status(offer.status.code(), absl::StrCat("rank ", rank, ": ", offer.status.message()));
    }
    const auto [first, is_new] = ranks.emplace(offer.gpu, rank);
    if (!is_new && !offer.gpu.empty()) {
      shared.Update(FailedPreconditionError(absl::StrCat("ranks ", first->second, " and ", rank,
                                                         " have the same GPU (", offer.gpu,
                                                         "); NCCL needs one for each rank")));
    }
    if (!offer.id.empty()) ids.push_back(std::move(offer.id));
  }
  RETURN_IF_ERROR(shared);
  return ids;
}

}  // namespace cadre::nccl
