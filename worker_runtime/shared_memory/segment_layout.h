// Shared memory of all ranks of one communicator: a line, two halves of staging room and channels
// to the others each, and the buffers that were allocated together.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_LAYOUT_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_LAYOUT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "worker_runtime/shared_memory/control_block.h"
#include "worker_runtime/shared_memory/segment.h"

namespace cadre::shared_memory {

// What one rank stages at a time. Two halves, so that a rank may fill one while others still read
// the other.
inline constexpr size_t kStagingHalfBytes = size_t{1} << 20;
inline constexpr size_t kLineBytes = 4096;
// What all channels of one rank may take together.
inline constexpr size_t kChannelsBytes = size_t{1} << 20;
inline constexpr size_t kMaxChannelBytes = size_t{128} << 10;

// One segment of each rank, in rank order.
using Segments = std::vector<std::unique_ptr<SharedSegment>>;

// A home holds a rank's line, its two halves and a channel to each rank.
inline size_t ChannelBytes(int ranks) {
  return std::min(kMaxChannelBytes, kChannelsBytes / ranks / 4096 * 4096);
}
inline size_t HomeBytes(int ranks) {
  return kLineBytes + 2 * kStagingHalfBytes + ranks * ChannelBytes(ranks);
}
inline RankLine* LineOf(const SharedSegment& home) {
  return reinterpret_cast<RankLine*>(home.data());
}
inline char* StagingOf(const SharedSegment& home, uint64_t half) {
  return home.data() + kLineBytes + (half % 2) * kStagingHalfBytes;
}
inline char* ChannelOf(const SharedSegment& home, int to, int ranks) {
  return home.data() + kLineBytes + 2 * kStagingHalfBytes + to * ChannelBytes(ranks);
}

// One allocation of all ranks together, as this rank sees it.
struct Allocation {
  const char* base = nullptr;
  size_t bytes = 0;
  uint32_t number = kNotRegistered;
  // As long as this rank holds its memory in the allocation.
  const Segments* segments = nullptr;
  // Of the registry when this was looked up.
  uint64_t version = 0;

  bool Holds(const void* data, size_t count) const {
    const size_t offset = static_cast<const char*>(data) - base;
    return base != nullptr && data >= base && offset <= bytes && count <= bytes - offset;
  }
};

// The allocations that are in use. Thread safe.
class Registry {
 public:
  // The memory of `rank` in a new allocation; given back when the last copy of the pointer goes.
  static std::shared_ptr<void> Add(const std::shared_ptr<Registry>& registry, Segments segments,
                                   int rank);
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
  uint32_t allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const char*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_LAYOUT_H_
