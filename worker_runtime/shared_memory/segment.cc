#include "worker_runtime/shared_memory/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/reserve_bytes.h"
#include "worker_runtime/shared_memory/huge_pages.h"

namespace cadre::shared_memory {
namespace {

Result<char*> Map(int fd, size_t bytes) {
  // All pages present now, so that the first collective does not pay for their faults.
  void* const data = MapFile(fd, bytes);
  if (data == MAP_FAILED) {
    return ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes of shared memory: ", strerror(errno)));
  }
  return static_cast<char*>(data);
}

// Bytes that the machine can give without evicting others' memory. Reserving more would not fail:
// it would end in the kernel's choosing a process to kill.
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
  // Reserved now: a machine without the memory says so here instead of killing someone later.
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
    return InvalidArgumentError(absl::StrCat("'", address, "' is no segment's address"));
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

}  // namespace cadre::shared_memory
