#include "worker_runtime/checkpoint/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker_runtime/checkpoint/crc32c.h"

namespace cadre::checkpoint {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

// An open descriptor, closed at the end of its scope.
class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

Status Failed(absl::string_view what, const std::string& path) {
  return ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

// For files to be read: a pipe or a device in a file's place might keep the reader for ever.
constexpr int kRead = O_RDONLY | O_NONBLOCK | O_NOCTTY;

Status CheckIsFile(const File& file, const std::string& path) {
  struct stat info;
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0) return Failed("open", path);
  if (S_ISREG(info.st_mode)) return OkStatus();
  return FailedPreconditionError(absl::StrCat(path, " is no regular file"));
}

// 0 at the end of the file.
Result<size_t> ReadSome(int fd, const std::string& path, char* to, size_t bytes) {
  ssize_t got;
  do {
    got = read(fd, to, bytes);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Failed("read", path);
  return static_cast<size_t>(got);
}

}  // namespace

Result<FileSum> SumFile(const std::string& path) {
  const File file(path, kRead);
  RETURN_IF_ERROR(CheckIsFile(file, path));
  const auto chunk = std::make_unique<char[]>(kChunkBytes);
  FileSum sum;
  while (true) {
    ASSIGN_OR_RETURN(const size_t got, ReadSome(file.fd(), path, chunk.get(), kChunkBytes));
    if (got == 0) return sum;
    sum.bytes += got;
    sum.crc32c = ExtendCrc32c(sum.crc32c, {chunk.get(), got});
  }
}

Result<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  const File file(path, kRead);
  RETURN_IF_ERROR(CheckIsFile(file, path));
  std::string content(max_bytes + 1, '\0');
  size_t size = 0;
  while (size < content.size()) {
    ASSIGN_OR_RETURN(const size_t got,
                     ReadSome(file.fd(), path, &content[size], content.size() - size));
    if (got == 0) break;
    size += got;
  }
  if (size > max_bytes) {
    return InvalidArgumentError(absl::StrCat(path, " is longer than ", max_bytes, " bytes"));
  }
  content.resize(size);
  return content;
}

Status WriteAndSync(const std::string& path, absl::string_view bytes) {
  return WriteAndSync(path, {bytes});
}

Status WriteAndSync(const std::string& path, std::initializer_list<absl::string_view> pieces) {
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.fd() < 0) return Failed("create", path);
  for (absl::string_view bytes : pieces) {
    while (!bytes.empty()) {
      const ssize_t written = write(file.fd(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed("write", path);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (fsync(file.fd()) != 0) return Failed("sync", path);
  return OkStatus();
}

Status Sync(const std::string& path) {
  const File file(path, O_RDONLY);
  if (file.fd() < 0) return Failed("open", path);
  if (fsync(file.fd()) != 0) return Failed("sync", path);
  return OkStatus();
}

Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return OkStatus();
  return Failed(absl::StrCat("rename ", from, " to"), to);
}

Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (!error) return OkStatus();
  return ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", path));
}

}  // namespace cadre::checkpoint
