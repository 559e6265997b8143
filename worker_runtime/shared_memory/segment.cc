#include "worker_runtime/shared_memory/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/reserve_bytes.h"
#include "base/status_macros.h"
#include "cadre/status.h"

namespace cadre::shared_memory {
namespace {

Result<char*> Map(int fd, size_t bytes) {
  // All pages are mapped now, so that the first collective does not pay for the page faults.
  void* const data = MapFile(fd, bytes);
  if (data == MAP_FAILED) {
    return ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes of shared memory: ", strerror(errno)));
  }
  return static_cast<char*>(data);
}

// Returns the bytes that the machine can give without evicting others' memory. Reserving more would
// not fail; instead the kernel would choose a process to kill.
uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<SharedSegment>> SharedSegment::Create(size_t bytes) {
  const uint64_t available = AvailableMemory();
  if (bytes > available) {
    return ResourceExhaustedError(absl::StrCat(
        "no ", bytes, " bytes of shared memory: the machine has ", available, " left"));
  }
  const int fd = memfd_create("cadre-communicator", MFD_CLOEXEC);
  if (fd < 0) return ErrnoToStatus(errno, "memfd_create");
  // The memory is reserved now, so that a lack of memory is an error here and kills no process
  // later.
  int error = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == 0) {
    BackWithHugePages(fd, bytes);
    error = ReserveBytes(fd, bytes);
  }
  if (error != 0) {
    close(fd);
    return ResourceExhaustedError(
        absl::StrCat("no ", bytes, " bytes of shared memory: ", strerror(error)));
  }
  Result<char*> data = Map(fd, bytes);
  if (!data.ok()) {
    close(fd);
    return data.status();
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(*data, bytes, fd));
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::Open(absl::string_view address) {
  const std::vector<absl::string_view> parts = absl::StrSplit(address, ' ');
  int pid = 0, remote_fd = 0;
  uint64_t bytes = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &remote_fd) || !absl::SimpleAtoi(parts[2], &bytes) ||
      bytes == 0) {
    return InvalidArgumentError(absl::StrCat("'", address, "' is not a segment's address"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", remote_fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return UnavailableError(absl::StrCat("cannot open the shared memory of process ", pid, " (",
                                         path, "): ", strerror(errno)));
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    close(fd);
    return UnavailableError(
        absl::StrCat(path, " of process ", pid, " is not the segment it was: it is too small"));
  }
  Result<char*> data = Map(fd, bytes);
  close(fd);
  if (!data.ok()) return data.status();
  return std::unique_ptr<SharedSegment>(new SharedSegment(*data, bytes, -1));
}

SharedSegment::~SharedSegment() {
  CloseDescriptor();
  munmap(data_, size_);
}

std::string SharedSegment::address() const { return absl::StrCat(getpid(), " ", fd_, " ", size_); }

void SharedSegment::CloseDescriptor() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Result<MappedSegments> MapSegments(Worker& worker, const std::string& name, size_t bytes,
                                   std::chrono::nanoseconds timeout) {
  const WorkerPlace& place = worker.place();
  const MonoTime deadline = MonoNow() + timeout;
  // The timeout is never 0: with 0 the store would report that the key does not exist, instead of
  // that the time has passed.
  const auto left = [&] {
    return absl::ToChronoNanoseconds(std::max(deadline - MonoNow(), absl::Milliseconds(1)));
  };
  const std::string what = absl::StrCat("shared_memory/", name, "/");
  ASSIGN_OR_RETURN(const int64_t opened, worker.Add(absl::StrCat(what, "opened/", place.rank), 1));
  const std::string prefix = absl::StrCat(what, opened, "/");
  ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> own, SharedSegment::Create(bytes));
  RETURN_IF_ERROR(worker.Set(absl::StrCat(prefix, place.rank), own->address()));
  MappedSegments mapped;
  for (int peer = 0; peer < place.world_size; ++peer) {
    const Result<std::string> found = worker.Get(absl::StrCat(prefix, peer), left());
    if (found.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError(
          absl::StrCat("connecting communicator \"", name, "\": rank ", peer,
                       " did not come within ", absl::FormatDuration(absl::FromChrono(timeout)),
                       "; all ranks connect communicators of the same names, each as often"));
    }
    ASSIGN_OR_RETURN(const std::string address, found);
    const std::vector<absl::string_view> parts = absl::StrSplit(address, ' ');
    pid_t pid = 0;
    if (!absl::SimpleAtoi(parts[0], &pid)) {
      return InternalError(absl::StrCat("'", address, "' is not a segment's address"));
    }
    mapped.pids.push_back(pid);
    if (peer == place.rank) {
      mapped.segments.push_back(nullptr);
      continue;
    }
    ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment, SharedSegment::Open(address));
    mapped.segments.push_back(std::move(segment));
  }
  RETURN_IF_ERROR(worker.Barrier(absl::StrCat(prefix, "mapped"), left()));
  own->CloseDescriptor();
  mapped.segments[place.rank] = std::move(own);
  return mapped;
}

namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

// If memory is fragmented the kernel first moves other pages, which takes longer than the huge
// pages are worth to a short job.
constexpr absl::Duration kPatience = absl::Milliseconds(200);

// Reserves address space that begins at a huge page's boundary; null if there is none.
char* Reserve(size_t bytes) {
  const size_t more = bytes + kHugePageBytes;
  void* const all =
      mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(all);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  if (before > 0) munmap(begin, before);
  // The length is rounded up to pages, as mmap() does with `bytes`.
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
    // MADV_COLLAPSE skips a range that has no page at all.
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

std::shared_ptr<void> Allocations::Add(const std::shared_ptr<Allocations>& allocations,
                                       Segments segments, int rank) {
  char* const data = segments[rank]->data();
  Entry entry;
  entry.bytes = segments[rank]->size();
  entry.segments = std::make_unique<const Segments>(std::move(segments));
  absl::MutexLock lock(&allocations->mutex_);
  // The number is equal on all ranks, because all ranks allocate in the same order.
  entry.number = allocations->count_++;
  allocations->entries_[data] = std::move(entry);
  allocations->version_.fetch_add(1);
  return std::shared_ptr<void>(data, [allocations](void* memory) {
    absl::MutexLock lock(&allocations->mutex_);
    allocations->entries_.erase(static_cast<const char*>(memory));
    allocations->version_.fetch_add(1);
  });
}

bool Allocations::LookUp(const void* data, size_t bytes, Allocation* found) const {
  absl::MutexLock lock(&mutex_);
  auto after = entries_.upper_bound(static_cast<const char*>(data));
  if (after == entries_.begin()) return false;
  const auto& [base, entry] = *std::prev(after);
  const Allocation here = {base, entry.bytes, entry.number, entry.segments.get(), version_.load()};
  if (!here.Holds(data, bytes)) return false;
  *found = here;
  return true;
}

}  // namespace cadre::shared_memory
