#include "worker_runtime/memory/files/slot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::memory {
namespace {

constexpr uint64_t kMagic = 0x02746b6350726443;  // "CdrPckt", format 2

// As it lies in the file, which other processes read. The kernel keeps the order of writes to the
// file and to its mapping, whoever dies in between.
struct Header {
  uint64_t magic = 0;  // 0 while the state is written
  int64_t step = 0;
  uint64_t bytes = 0;
  uint64_t sequence = 0;
  int64_t world_size = 0;
  uint64_t generation = 0;
};
static_assert(sizeof(Header) <= kStateOffset);

absl::Status WriteHeader(const std::string& path, const Header& header) {
  const ScopedFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.ok() || pwrite(fd.get(), &header, sizeof(header), 0) != sizeof(header)) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<SlotLabel> ReadLabel(const std::string& path) {
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  Header header;
  if (!fd.ok() || pread(fd.get(), &header, sizeof(header), 0) != sizeof(header) ||
      header.magic != kMagic) {
    return std::nullopt;
  }
  return SlotLabel{header.step, header.generation, static_cast<int>(header.world_size),
                   static_cast<size_t>(header.bytes), header.sequence};
}

absl::Status WriteLabel(const std::string& path, const SlotLabel& label) {
  return WriteHeader(
      path, {kMagic, label.step, label.bytes, label.sequence, label.world_size, label.generation});
}

absl::Status EraseLabel(const std::string& path) { return WriteHeader(path, {}); }

absl::StatusOr<MappedFile> MapState(const std::string& path, size_t bytes) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Readable(path));
  if (file.size() < kStateOffset || file.size() - kStateOffset < bytes) {
    return absl::DataLossError(absl::StrCat(path, " was cut short"));
  }
  return file;
}

}  // namespace cadre::memory
