// The checkpoints in memory of cadre.h.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cadre.h"
#include "cadre/memory_checkpoint.h"
#include "worker_runtime/c/arguments.h"
#include "worker_runtime/c/boundary.h"
#include "worker_runtime/c/handles.h"

using cadre::MemoryCheckpoint;
using cadre::MemoryCheckpointOptions;
using cadre::Status;
using cadre::c::Guarded;
using cadre::c::NotNull;

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
      if (sizes[i] > 0) RETURN_IF_ERROR(NotNull(parts[i], "a part that is not empty"));
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
    // cadre_memory_write() has copied: it waits for nothing, and says what became of the directory.
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
