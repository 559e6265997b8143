#include "worker_runtime/checkpoint/file_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::checkpoint {

FileReader::FileReader(std::string path, ScopedFd fd, uint64_t bytes)
    : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

Result<std::unique_ptr<FileReader>> FileReader::Open(const std::string& path) {
  // A pipe or a device in a file's place might keep the reader for ever.
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info = {};
  if (!fd.ok() || fstat(fd.get(), &info) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return FailedPreconditionError(absl::StrCat(path, " is no regular file"));
  }
  return std::unique_ptr<FileReader>(
      new FileReader(path, std::move(fd), static_cast<uint64_t>(info.st_size)));
}

Status FileReader::ReadAt(uint64_t offset, char* to, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = pread(fd_.get(), to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    if (got == 0) {
      return DataLossError(absl::StrCat(path_, " ends after ", offset, " bytes, and ", bytes,
                                        " more should follow"));
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return OkStatus();
}

}  // namespace cadre::checkpoint
