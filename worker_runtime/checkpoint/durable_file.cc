#include "worker_runtime/checkpoint/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

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

FileReader::FileReader(std::string path, ScopedFd fd, uint64_t bytes)
    : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

Result<std::unique_ptr<FileReader>> FileReader::Open(const std::string& path) {
  // Opening a pipe or a device in a file's place could block the reader forever.
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info = {};
  if (!fd.ok() || fstat(fd.get(), &info) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
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
      return DataLossError(absl::StrCat(path_, " ends after ", offset, " bytes, but ", bytes,
                                        " more were expected"));
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return OkStatus();
}

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kSlices = 8;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// Table k advances a byte that is followed by k more bytes, so eight bytes are processed at a time.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kSlices; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t LittleEndian32(const char* bytes) {
  unsigned char b[4];
  std::memcpy(b, bytes, sizeof(b));
  return b[0] | (uint32_t{b[1]} << 8) | (uint32_t{b[2]} << 16) | (uint32_t{b[3]} << 24);
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes) {
  crc = ~crc;
  while (bytes.size() >= kSlices) {
    const uint32_t low = crc ^ LittleEndian32(bytes.data());
    const uint32_t high = LittleEndian32(bytes.data() + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
          kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
    bytes.remove_prefix(kSlices);
  }
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

}  // namespace cadre::checkpoint
