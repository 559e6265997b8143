// How ranks come to share a communicator: through a worker's store, or by an id that they have.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/nccl/connect.h"
#include "cadre/nccl/unique_id.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_backend.h"
#include "worker_runtime/nccl/nccl_communicator.h"
#include "worker_runtime/nccl/nccl_handle.h"
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

Result<std::unique_ptr<NcclCommunicator>> JoinById(std::string_view id, int rank, int size,
                                                   const NcclOptions& options) {
  const MonoTime deadline = MonoNow() + options.timeout;
  ASSIGN_OR_RETURN(const NcclApi* const api, LoadNcclApi());
  NcclHandle::Place place = {rank, size, options.device};
  ASSIGN_OR_RETURN(const int devices, cuda::CountCudaDevices());
  if (place.device < 0) {
    ASSIGN_OR_RETURN(place.device, cuda::CurrentCudaDevice());
  }
  if (place.device >= devices) {
    return FailedPreconditionError(
        absl::StrCat("there is no GPU ", place.device, ": ", devices, " are visible"));
  }
  return Form(*api, place, {std::string(id)}, deadline, nullptr, options);
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

Result<std::unique_ptr<NcclCommunicator>> JoinById(std::string_view, int, int, const NcclOptions&) {
  return NcclUnavailable();
}

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
  Result<std::unique_ptr<NcclCommunicator>> joined = JoinById(id, rank, size, options);
  if (joined.ok()) return std::unique_ptr<Communicator>(*std::move(joined));
  return Status(joined.status().code(),
                absl::StrCat("connecting communicator \"", options.name, "\" as rank ", rank,
                             " of ", size, ": ", joined.status().message()));
}

}  // namespace cadre::nccl
