// Buffers that all ranks of one communicator allocated together, each seeing the memory of all.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_ALLOCATIONS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_ALLOCATIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "worker_runtime/shared_memory/control_block.h"
#include "worker_runtime/shared_memory/segment_layout.h"

namespace cadre::shared_memory {

// One allocation of all ranks together, as this rank sees it.
struct Allocation {
  const char* base = nullptr;
  size_t bytes = 0;
  uint32_t number = kNotRegistered;
  // As long as this rank holds its memory in the allocation.
  const Segments* segments = nullptr;
  // Of the allocations when this was looked up.
  uint64_t version = 0;

  bool Holds(const void* data, size_t count) const {
    const size_t offset = static_cast<const char*>(data) - base;
    return base != nullptr && data >= base && offset <= bytes && count <= bytes - offset;
  }
};

// The allocations that are in use. Thread safe.
class Allocations {
 public:
  // The memory of `rank` in a new allocation; given back when the last copy of the pointer goes.
  static std::shared_ptr<void> Add(const std::shared_ptr<Allocations>& allocations,
                                   Segments segments, int rank);
  // Looks for the allocation that holds `bytes` at `data`; `last` is what the caller found last,
  // and is looked at first. False: there is none.
  bool Find(const void* data, size_t bytes, Allocation* last) const {
    return (IsUnchanged(*last) && last->Holds(data, bytes)) || LookUp(data, bytes, last);
  }
  // Whether all allocations are what they were when this one was found.
  bool IsUnchanged(const Allocation& found) const {
    return found.version == version_.load(std::memory_order_acquire);
  }

 private:
  struct Entry {
    size_t bytes = 0;
    uint32_t number = 0;
    std::unique_ptr<const Segments> segments;
  };

  bool LookUp(const void* data, size_t bytes, Allocation* found) const;

  mutable absl::Mutex mutex_;
  // Changes with the entries.
  std::atomic<uint64_t> version_{1};
  uint32_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const char*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_ALLOCATIONS_H_
