// How ranks come to share a communicator: through a worker's store, by an id that they have, or
// over a communicator of the host.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/nccl/connect.h"
#include "cadre/nccl/unique_id.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_backend.h"
#include "worker_runtime/nccl/nccl_communicator.h"
#include "worker_runtime/nccl/nccl_handle.h"
#include "worker_runtime/nccl/nccl_offers.h"
#include "worker_runtime/nccl/root_ids.h"
#include "worker_runtime/nccl/root_plan.h"

namespace cadre::nccl {

#ifdef CADRE_WITH_NCCL
namespace {

// This rank's GPU, or why it has none.
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
                                               MonoTime deadline, const NcclHandle::Look& look,
                                               const NcclOptions& options) {
  const cuda::CudaDeviceScope scope(place.device);
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(auto handle, NcclHandle::Form(api, place, ids, deadline, look));
  return MakeNcclCommunicator(std::move(handle), options);
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
      *api, place, ids, deadline, [&] { return formation->LookForFailure(); }, options);
}

// The GPU of a program that says it, or has made it current.
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

// The running kernel's own name, which is one for all containers of a machine; NCCL_HOSTID takes
// its place as it does for NCCL.
std::string MachineId() {
  const char* const variable = std::getenv("NCCL_HOSTID");
  if (variable != nullptr) return variable;
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// This rank's part of forming a communicator over `host`.
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
    return InvalidArgumentError(
        absl::StrCat("rank ", rank, " of ", size, " connects by an NCCL id"));
  }
  Result<std::unique_ptr<NcclCommunicator>> joined =
      JoinByIds({std::string(id)}, rank, size, options);
  if (joined.ok()) return std::unique_ptr<Communicator>(*std::move(joined));
  return Status(joined.status().code(),
                absl::StrCat("connecting communicator \"", options.name, "\" as rank ", rank,
                             " of ", size, ": ", joined.status().message()));
}

namespace {

// All ranks' messages, one behind the other.
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
  // One that could not join must not leave the others with a communicator that nobody answers.
  const NcclOffer outcome{joined.status(), "", ""};
  // Another rank may have waited all of its time in NCCL.
  const auto outcomes = Exchange(host, WriteNcclOffer(outcome), 2 * options.timeout);
  if (!outcomes.ok()) return told(outcomes.status());
  const Status all = AgreeOnNcclIds(*outcomes).status();
  if (!all.ok()) return told(all);
  return std::unique_ptr<Communicator>(*std::move(joined));
}

}  // namespace cadre::nccl
