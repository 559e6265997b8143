// The worker, store and memory functions of cadre.h.
#include "cadre/worker.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre.h"
#include "cadre/checkpoint.h"
#include "cadre/exit_codes.h"
#include "cadre/memory_checkpoint.h"
#include "rendezvous/keyspace/store_limits.h"
#include "worker_runtime/c/boundary.h"
#include "worker_runtime/c/handles.h"

static_assert(cadre::kWorkerExitNeverRestart == CADRE_EXIT_NEVER_RESTART);
static_assert(cadre::kWorkerExitForNextGeneration == CADRE_EXIT_FOR_NEXT_GENERATION);
static_assert(cadre::keyspace::kMaxValueBytes == CADRE_MAX_VALUE_BYTES);

namespace cadre::c {
namespace {

// Returns `otherwise` for a null worker.
template <typename T, typename Get>
T OfPlace(const cadre_worker* worker, T otherwise, const Get& get) noexcept {
  const cadre_status status = Guarded([&] { return NotNull(worker, "worker"); });
  return status == CADRE_OK ? get(worker->worker->place()) : otherwise;
}

}  // namespace
}  // namespace cadre::c

using cadre::MemoryCheckpoint;
using cadre::MemoryCheckpointOptions;
using cadre::OkStatus;
using cadre::Result;
using cadre::Status;
using cadre::WorkerPlace;
using cadre::c::BytesOf;
using cadre::c::Guarded;
using cadre::c::NotNull;
using cadre::c::OfPlace;
using cadre::c::TextOf;

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

cadre_status cadre_store_set(cadre_worker* worker, const char* key, const void* value,
                             size_t value_size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const std::string_view bytes, BytesOf(value, value_size, "value"));
    return worker->worker->Set(name, bytes);
  });
}

cadre_status cadre_store_get(cadre_worker* worker, const char* key, int64_t timeout_ms, void* value,
                             size_t capacity, size_t* value_size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    RETURN_IF_ERROR(NotNull(value_size, "value_size"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    if (capacity > 0) RETURN_IF_ERROR(NotNull(value, "value"));
    ASSIGN_OR_RETURN(const std::string found, worker->worker->Get(name, timeout));
    *value_size = found.size();
    if (found.size() > capacity) {
      return cadre::OutOfRangeError(absl::StrCat("the value of \"", key, "\" has ", found.size(),
                                                 " bytes, and there is room for ", capacity));
    }
    if (capacity > 0) memcpy(value, found.c_str(), std::min(found.size() + 1, capacity));
    return OkStatus();
  });
}

cadre_status cadre_store_add(cadre_worker* worker, const char* key, int64_t delta, int64_t* sum) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const int64_t afterwards, worker->worker->Add(name, delta));
    if (sum != nullptr) *sum = afterwards;
    return OkStatus();
  });
}

cadre_status cadre_store_compare_and_set(cadre_worker* worker, const char* key,
                                         const void* expected, size_t expected_size,
                                         const void* desired, size_t desired_size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const std::string_view before, BytesOf(expected, expected_size, "expected"));
    ASSIGN_OR_RETURN(const std::string_view after, BytesOf(desired, desired_size, "desired"));
    return worker->worker->CompareAndSet(name, before, after).status();
  });
}

cadre_status cadre_store_delete(cadre_worker* worker, const char* key) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    return worker->worker->Delete(name);
  });
}

cadre_status cadre_memory_open(cadre_worker* worker, int flags, int64_t timeout_ms,
                               cadre_memory** memory) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    *memory = nullptr;
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    MemoryCheckpointOptions options;
    constexpr int kKnown = CADRE_MEMORY_REPLICATED | CADRE_MEMORY_NO_PARTNER;
    if ((flags & ~kKnown) != 0) {
      return cadre::InvalidArgumentError("flags: expected those of CADRE_MEMORY_* or 0");
    }
    options.replicated = (flags & CADRE_MEMORY_REPLICATED) != 0;
    options.partner = (flags & CADRE_MEMORY_NO_PARTNER) == 0;
    ASSIGN_OR_RETURN(options.timeout, cadre::c::TimeoutOf(timeout_ms));
    ASSIGN_OR_RETURN(auto opened, MemoryCheckpoint::Open(*worker->worker, options));
    *memory = new cadre_memory{std::move(opened)};
    return cadre::OkStatus();
  });
}

cadre_status cadre_memory_spill(cadre_memory* memory, const char* directory, int64_t every_ms) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    RETURN_IF_ERROR(NotNull(directory, "directory"));
    ASSIGN_OR_RETURN(const auto every, cadre::c::TimeoutOf(every_ms));
    return memory->memory->Spill(directory, every);
  });
}

void cadre_memory_free(cadre_memory* memory) { delete memory; }

cadre_status cadre_memory_write(cadre_memory* memory, const void* const* parts, const size_t* sizes,
                                size_t count) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    if (count > 0) {
      RETURN_IF_ERROR(NotNull(parts, "parts"));
      RETURN_IF_ERROR(NotNull(sizes, "sizes"));
    }
    std::vector<cadre::StatePart> written;
    for (size_t i = 0; i < count; ++i) {
      if (sizes[i] > 0) RETURN_IF_ERROR(NotNull(parts[i], absl::StrCat("parts[", i, "]").c_str()));
      written.push_back({parts[i], sizes[i]});
    }
    return memory->memory->Write(written);
  });
}

cadre_status cadre_memory_commit(cadre_memory* memory, int64_t step) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    return memory->memory->Commit(step);
  });
}

cadre_status cadre_memory_wait_for_partner(cadre_memory* memory) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    RETURN_IF_ERROR(memory->memory->WaitForPartner());
    // cadre_memory_write() has copied already, so Wait() does not block; it returns errors of the
    // directory.
    return memory->memory->Wait();
  });
}

cadre_status cadre_memory_latest(cadre_memory* memory, int64_t* step, const void** data,
                                 size_t* size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    RETURN_IF_ERROR(NotNull(step, "step"));
    RETURN_IF_ERROR(NotNull(data, "data"));
    RETURN_IF_ERROR(NotNull(size, "size"));
    ASSIGN_OR_RETURN(const std::optional<cadre::SavedState> latest, memory->memory->Latest());
    if (!latest.has_value()) {
      return cadre::NotFoundError("no state is in memory, or another number of ranks saved it");
    }
    *step = latest->step;
    *data = latest->bytes.data();
    *size = latest->bytes.size();
    return cadre::OkStatus();
  });
}

cadre_status cadre_memory_saved_as(cadre_memory* memory, int* flags) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(memory, "memory"));
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    ASSIGN_OR_RETURN(const std::optional<bool> replicated, memory->memory->SavedReplicated());
    if (!replicated.has_value()) return cadre::NotFoundError("no state is in memory");
    *flags = *replicated ? CADRE_MEMORY_REPLICATED : 0;
    return cadre::OkStatus();
  });
}
