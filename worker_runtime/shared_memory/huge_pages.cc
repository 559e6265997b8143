#include "worker_runtime/shared_memory/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>

#include "base/clock.h"

namespace cadre::shared_memory {
namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

// A kernel whose memory is scattered moves other pages out of the way first, which takes longer
// than the huge pages are worth to a short job.
constexpr absl::Duration kPatience = absl::Milliseconds(200);

// Address space that begins on a huge page's boundary; null: there is none.
char* Reserve(size_t bytes) {
  const size_t more = bytes + kHugePageBytes;
  void* const all =
      mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(all);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  if (before > 0) munmap(begin, before);
  // Unmapping rounds up to pages, as mapping `bytes` does.
  const size_t mapped = (bytes + 4095) / 4096 * 4096;
  munmap(begin + before + mapped, more - before - mapped);
  return begin + before;
}

void* MapAligned(int fd, size_t bytes, int flags) {
  char* const place = bytes < kHugePageBytes ? nullptr : Reserve(bytes);
  if (place != nullptr) flags |= MAP_FIXED;
  void* const data = mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
  if (data == MAP_FAILED && place != nullptr) munmap(place, bytes);
  return data;
}

}  // namespace

size_t BackWithHugePages(int fd, size_t bytes) {
  const size_t wanted = bytes / kHugePageBytes;
  if (wanted == 0) return 0;
  void* const data = MapAligned(fd, bytes, 0);
  if (data == MAP_FAILED) return 0;
  const MonoTime deadline = MonoNow() + kPatience;
  size_t backed = 0;
  while (backed < wanted && MonoNow() < deadline) {
    const size_t at = backed * kHugePageBytes;
    // A range without any page is not collapsed.
    if (posix_fallocate(fd, static_cast<off_t>(at), 1) != 0 ||
        madvise(static_cast<char*>(data) + at, kHugePageBytes, MADV_COLLAPSE) != 0) {
      break;
    }
    ++backed;
  }
  munmap(data, bytes);
  return backed;
}

size_t MoveToHugePages(void* data, size_t bytes, MonoTime deadline) {
  char* at = static_cast<char*>(data);
  char* const end = at + bytes;
  const size_t before = -reinterpret_cast<uintptr_t>(at) % kHugePageBytes;
  if (before > bytes) return 0;
  size_t moved = 0;
  for (at += before; at + kHugePageBytes <= end && MonoNow() < deadline; at += kHugePageBytes) {
    if (madvise(at, kHugePageBytes, MADV_COLLAPSE) != 0) break;
    ++moved;
  }
  return moved;
}

void* MapFile(int fd, size_t bytes) { return MapAligned(fd, bytes, MAP_POPULATE); }

}  // namespace cadre::shared_memory
