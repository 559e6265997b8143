// Memory that processes of one user on one machine share: a segment of each rank, its layout, how
// the ranks map each other's, and buffers that they allocate together. It has no name in any file
// system, so it is freed when the last process that mapped it is gone, however that process ended.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_H_

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/shared_memory/peers.h"

namespace cadre::shared_memory {

// Puts huge pages under a memory file, and under existing memory. A sum over 100 MiB in 4 KiB pages
// takes a fifth to a quarter longer: it misses address translations, and scattered pages evict each
// other from the cache. The kernel gives memory files no huge pages unless an administrator enabled
// them, but it does when a range is requested explicitly (MADV_COLLAPSE, Linux 6.1). Only speed
// depends on this.

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Backs the beginning of the file with as many whole huge pages as the kernel gives soon, and
// returns their number. The file must have its final size and no pages yet.
size_t BackWithHugePages(int fd, size_t bytes);

// Moves private memory in [data, data + bytes) into huge pages, in place. It moves as many whole
// huge pages as the kernel gives before `deadline`, and returns their number. Threads that use the
// memory meanwhile wait.
size_t MoveToHugePages(void* data, size_t bytes, MonoTime deadline);

// Maps the first `bytes` of the file for reading and writing, with all pages present, and aligned
// so that huge pages can be mapped as such. Returns MAP_FAILED and sets errno on failure.
void* MapFile(int fd, size_t bytes);

// Not thread safe. Access to the memory itself is up to its users.
class SharedSegment {
 public:
  // Creates zeroed, page-aligned memory. RESOURCE_EXHAUSTED: the machine does not have that much.
  static Result<std::unique_ptr<SharedSegment>> Create(size_t bytes);
  // Maps another process's segment, whose descriptor that process must still hold.
  static Result<std::unique_ptr<SharedSegment>> Open(absl::string_view address);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  // Returns the address for Open() in another process: a short text without spaces at its ends.
  std::string address() const;
  // Called when all ranks have opened the segment. The mappings stay.
  void CloseDescriptor();

 private:
  SharedSegment(char* data, size_t size, int fd) : data_(data), size_(size), fd_(fd) {}

  char* const data_;
  const size_t size_;
  int fd_;
};

// The layout of a rank's segment, which all ranks of a communicator map: its control block, two
// halves of staging memory, and a channel to each rank.

// A rank stages this many bytes at a time. There are two halves, so that a rank can fill one while
// others still read the other.
inline constexpr size_t kStagingHalfBytes = size_t{1} << 20;
inline constexpr size_t kControlBlockBytes = 4096;
// The bytes of all channels of one rank together.
inline constexpr size_t kChannelsBytes = size_t{1} << 20;
inline constexpr size_t kMaxChannelBytes = size_t{128} << 10;

// One segment of each rank, in rank order.
using Segments = std::vector<std::unique_ptr<SharedSegment>>;

inline size_t ChannelBytes(int ranks) {
  return std::min(kMaxChannelBytes, kChannelsBytes / ranks / 4096 * 4096);
}
inline size_t SegmentBytes(int ranks) {
  return kControlBlockBytes + 2 * kStagingHalfBytes + ranks * ChannelBytes(ranks);
}
inline ControlBlock* ControlBlockOf(const SharedSegment& segment) {
  return reinterpret_cast<ControlBlock*>(segment.data());
}
// Returns the control blocks in rank order.
inline std::vector<ControlBlock*> ControlBlocksOf(const Segments& segments) {
  std::vector<ControlBlock*> blocks;
  for (const auto& segment : segments) blocks.push_back(ControlBlockOf(*segment));
  return blocks;
}
inline char* StagingOf(const SharedSegment& segment, uint64_t half) {
  return segment.data() + kControlBlockBytes + (half % 2) * kStagingHalfBytes;
}
inline char* ChannelOf(const SharedSegment& segment, int to, int ranks) {
  return segment.data() + kControlBlockBytes + 2 * kStagingHalfBytes + to * ChannelBytes(ranks);
}

struct MappedSegments {
  Segments segments;        // by rank
  std::vector<pid_t> pids;  // of the processes that own the segments
};

// Collective over the world. Each rank creates a segment of `bytes` and maps all others'. Every
// rank must call this equally often with the same name. It waits up to `timeout` for the others.
// Errors are those of Worker's calls and of creating or mapping memory.
Result<MappedSegments> MapSegments(Worker& worker, const std::string& name, size_t bytes,
                                   std::chrono::nanoseconds timeout);

// Buffers that all ranks of a communicator allocated together. Each rank can access the memory of
// all ranks.

// An allocation that all ranks made together, as this rank maps it.
struct Allocation {
  const char* base = nullptr;
  size_t bytes = 0;
  uint32_t number = kNotRegistered;
  // Valid as long as this rank holds its memory in the allocation.
  const Segments* segments = nullptr;
  // The version of the Allocations when this was looked up.
  uint64_t version = 0;

  bool Holds(const void* data, size_t count) const {
    const size_t offset = static_cast<const char*>(data) - base;
    return base != nullptr && data >= base && offset <= bytes && count <= bytes - offset;
  }
};

// The allocations in use. Thread safe.
class Allocations {
 public:
  // Returns the memory of `rank` in a new allocation, which is freed with the last copy of the
  // pointer.
  static std::shared_ptr<void> Add(const std::shared_ptr<Allocations>& allocations,
                                   Segments segments, int rank);
  // Finds the allocation that holds `bytes` at `data`. `last` is the caller's last result and is
  // tried first. Returns false if there is no such allocation.
  bool Find(const void* data, size_t bytes, Allocation* last) const {
    return (IsUnchanged(*last) && last->Holds(data, bytes)) || LookUp(data, bytes, last);
  }
  // Returns true if no allocation was added or removed since `found` was looked up.
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
  // Incremented whenever the entries change.
  std::atomic<uint64_t> version_{1};
  uint32_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const char*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_H_
