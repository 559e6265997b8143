// The worker of cadre.h.
#include "cadre/worker.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "cadre.h"
#include "cadre/checkpoint.h"
#include "cadre/exit_codes.h"
#include "worker_runtime/c/arguments.h"
#include "worker_runtime/c/boundary.h"
#include "worker_runtime/c/handles.h"

static_assert(cadre::kWorkerExitNeverRestart == CADRE_EXIT_NEVER_RESTART);
static_assert(cadre::kWorkerExitForNextGeneration == CADRE_EXIT_FOR_NEXT_GENERATION);

namespace cadre::c {
namespace {

// `otherwise` for a null worker.
template <typename T, typename Get>
T OfPlace(const cadre_worker* worker, T otherwise, const Get& get) noexcept {
  const cadre_status status = Guarded([&] { return NotNull(worker, "worker"); });
  return status == CADRE_OK ? get(worker->worker->place()) : otherwise;
}

}  // namespace
}  // namespace cadre::c

using cadre::Result;
using cadre::Status;
using cadre::WorkerPlace;
using cadre::c::Guarded;
using cadre::c::NotNull;
using cadre::c::OfPlace;

cadre_status cadre_worker_connect(cadre_worker** worker) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    *worker = nullptr;
    ASSIGN_OR_RETURN(auto connected, cadre::Worker::Connect());
    *worker = new cadre_worker{std::move(connected)};
    return cadre::OkStatus();
  });
}

cadre_status cadre_worker_connect_at(int rank, int world_size, const char* address,
                                     int64_t timeout_ms, cadre_worker** worker) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    *worker = nullptr;
    RETURN_IF_ERROR(NotNull(address, "address"));
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    ASSIGN_OR_RETURN(auto connected, cadre::Worker::Connect({rank, world_size, address, timeout}));
    *worker = new cadre_worker{std::move(connected)};
    return cadre::OkStatus();
  });
}

void cadre_worker_free(cadre_worker* worker) { delete worker; }

int cadre_worker_rank(const cadre_worker* worker) {
  return OfPlace(worker, -1, [](const WorkerPlace& place) { return place.rank; });
}

int cadre_worker_world_size(const cadre_worker* worker) {
  return OfPlace(worker, -1, [](const WorkerPlace& place) { return place.world_size; });
}

int cadre_worker_local_rank(const cadre_worker* worker) {
  return OfPlace(worker, -1, [](const WorkerPlace& place) { return place.local_rank; });
}

int cadre_worker_node_rank(const cadre_worker* worker) {
  return OfPlace(worker, -1, [](const WorkerPlace& place) { return place.node_rank; });
}

int cadre_worker_restart_count(const cadre_worker* worker) {
  return OfPlace(worker, -1, [](const WorkerPlace& place) { return place.restart_count; });
}

int64_t cadre_worker_generation(const cadre_worker* worker) {
  return OfPlace(worker, int64_t{-1},
                 [](const WorkerPlace& place) { return static_cast<int64_t>(place.generation); });
}

const char* cadre_worker_job(const cadre_worker* worker) {
  return OfPlace(worker, "", [](const WorkerPlace& place) { return place.job.c_str(); });
}

cadre_status cadre_worker_barrier(cadre_worker* worker, const char* name, int64_t timeout_ms) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view of, cadre::c::TextOf(name, "name"));
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    return worker->worker->Barrier(of, timeout);
  });
}

cadre_status cadre_worker_report_progress(cadre_worker* worker, int64_t step,
                                          double samples_per_second, double loss) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    worker->worker->ReportProgress(step, samples_per_second, loss);
    return cadre::OkStatus();
  });
}

cadre_status cadre_checkpoint_wanted(cadre_worker* worker, int64_t timeout_ms, int* wanted) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    RETURN_IF_ERROR(NotNull(wanted, "wanted"));
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    ASSIGN_OR_RETURN(const bool answer, cadre::CheckpointWanted(*worker->worker, timeout));
    *wanted = answer ? 1 : 0;
    return cadre::OkStatus();
  });
}
