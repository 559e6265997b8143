#include "worker_runtime/checkpoint/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "worker_runtime/checkpoint/crc32c.h"
#include "worker_runtime/checkpoint/file_reader.h"

namespace cadre::checkpoint {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

Status Failed(absl::string_view what, const std::string& path) {
  return ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

Status Write(int fd, const std::string& path, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

}  // namespace

Result<FileSum> SumFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileReader> file, FileReader::Open(path));
  const auto chunk = std::make_unique<char[]>(kChunkBytes);
  FileSum sum;
  while (sum.bytes < file->bytes()) {
    const size_t bytes = std::min<uint64_t>(kChunkBytes, file->bytes() - sum.bytes);
    RETURN_IF_ERROR(file->ReadAt(sum.bytes, chunk.get(), bytes));
    sum.bytes += bytes;
    sum.crc32c = ExtendCrc32c(sum.crc32c, {chunk.get(), bytes});
  }
  return sum;
}

Result<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileReader> file, FileReader::Open(path));
  if (file->bytes() > max_bytes) {
    return InvalidArgumentError(absl::StrCat(path, " is longer than ", max_bytes, " bytes"));
  }
  std::string content(file->bytes(), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, &content[0], content.size()));
  return content;
}

Status WriteAndSync(const std::string& path, absl::string_view bytes) {
  return WriteAndSync(path, {bytes});
}

Status WriteAndSync(const std::string& path, std::initializer_list<absl::string_view> pieces) {
  const ScopedFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.ok()) return Failed("create", path);
  for (const absl::string_view bytes : pieces) RETURN_IF_ERROR(Write(file.get(), path, bytes));
  if (fsync(file.get()) != 0) return Failed("sync", path);
  return OkStatus();
}

Status WriteAndSync(int fd, const std::string& path, absl::string_view bytes) {
  RETURN_IF_ERROR(Write(fd, path, bytes));
  if (fsync(fd) != 0) return Failed("sync", path);
  return OkStatus();
}

Status Sync(const std::string& path) {
  const ScopedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return Failed("open", path);
  if (fsync(file.get()) != 0) return Failed("sync", path);
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
