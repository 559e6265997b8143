#include "worker_runtime/memory/files/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/reserve_bytes.h"
#include "base/scoped_fd.h"

namespace cadre::memory {
namespace {

absl::Status NoRoom(const std::string& path, size_t bytes) {
  struct statvfs found = {};
  const bool known = statvfs(path.c_str(), &found) == 0;
  return absl::ResourceExhaustedError(absl::StrCat(
      "a checkpoint of ", bytes, " bytes does not fit into ", path,
      known ? absl::StrCat(", where ", found.f_bavail * found.f_frsize, " bytes are free") : "",
      "; make /dev/shm larger, or save less"));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Writable(const std::string& path, size_t bytes) {
  const ScopedFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat found = {};
  if (fstat(fd.get(), &found) != 0) return absl::ErrnoToStatus(errno, path);
  if (static_cast<size_t>(found.st_size) < bytes) {
    const int error = ReserveBytes(fd.get(), bytes);
    if (error == ENOSPC || error == EFBIG || error == ENOMEM) {
      // What it could reserve is given back.
      if (ftruncate(fd.get(), found.st_size) != 0) return absl::ErrnoToStatus(errno, path);
      return NoRoom(path, bytes);
    }
    if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot enlarge ", path));
  }
  const size_t size = std::max(bytes, static_cast<size_t>(found.st_size));
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  return MappedFile(static_cast<char*>(data), size);
}

absl::StatusOr<MappedFile> MappedFile::Readable(const std::string& path) {
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat found = {};
  if (fstat(fd.get(), &found) != 0) return absl::ErrnoToStatus(errno, path);
  const size_t size = static_cast<size_t>(found.st_size);
  if (size == 0) return absl::NotFoundError(absl::StrCat(path, " is empty"));
  void* const data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  return MappedFile(static_cast<char*>(data), size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace cadre::memory
