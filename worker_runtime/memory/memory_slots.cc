#include "worker_runtime/memory/memory_slots.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::memory {
namespace {

constexpr uint64_t kMagic = 0x01746b6350726443;  // "CdrPckt", format 1
// In front of the state, so that it begins at a page.
constexpr size_t kHeaderBytes = 4096;

// As it lies in the file, which other processes read. The kernel keeps the order of writes to the
// file and to its mapping, whoever dies in between.
struct Header {
  uint64_t magic = 0;  // 0 while the state is written
  int64_t step = 0;
  uint64_t bytes = 0;
  uint64_t sequence = 0;
  int64_t world_size = 0;
};

std::optional<Header> HeaderOf(const std::string& path) {
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  Header header;
  if (!fd.ok() || pread(fd.get(), &header, sizeof(header), 0) != sizeof(header) ||
      header.magic != kMagic) {
    return std::nullopt;
  }
  return header;
}

absl::Status WriteHeader(const std::string& path, const Header& header) {
  const ScopedFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.ok() || pwrite(fd.get(), &header, sizeof(header), 0) != sizeof(header)) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace

MemorySlots::MemorySlots(std::string directory, std::string name, int count)
    : directory_(std::move(directory)), name_(std::move(name)), count_(count), written_(count) {}

std::string MemorySlots::Path(int slot) const {
  return absl::StrCat(directory_, "/", name_, ".", slot);
}

std::vector<SavedStep> MemorySlots::Whole() const {
  std::vector<SavedStep> whole;
  for (int slot = 0; slot < count_; ++slot) {
    const std::optional<Header> header = HeaderOf(Path(slot));
    if (!header.has_value()) continue;
    whole.push_back({header->step, static_cast<size_t>(header->bytes),
                     static_cast<int>(header->world_size), header->sequence, slot});
  }
  return whole;
}

absl::StatusOr<char*> MemorySlots::Begin(size_t bytes) {
  std::vector<uint64_t> sequences(count_, 0);
  for (const SavedStep& saved : Whole()) sequences[saved.slot] = saved.sequence;
  const auto oldest = std::min_element(sequences.begin(), sequences.end());
  const int slot = static_cast<int>(oldest - sequences.begin());
  std::optional<MappedFile>& file = written_[slot];
  if (!file.has_value() || file->size() < kHeaderBytes + bytes) {
    ASSIGN_OR_RETURN(file, MappedFile::Writable(Path(slot), kHeaderBytes + bytes));
  }
  RETURN_IF_ERROR(Forget(slot));
  begun_ = slot;
  begun_bytes_ = bytes;
  return file->data() + kHeaderBytes;
}

absl::Status MemorySlots::Commit(int64_t step, int world_size) {
  if (begun_ < 0) return absl::FailedPreconditionError("no state was written");
  RETURN_IF_ERROR(DropAbove(step - 1));
  uint64_t newest = 0;
  for (const SavedStep& saved : Whole()) newest = std::max(newest, saved.sequence);
  const int slot = std::exchange(begun_, -1);
  return WriteHeader(Path(slot), {kMagic, step, begun_bytes_, newest + 1, world_size});
}

absl::Status MemorySlots::DropAbove(int64_t step) {
  for (const SavedStep& saved : Whole()) {
    if (saved.step > step) RETURN_IF_ERROR(Forget(saved.slot));
  }
  return absl::OkStatus();
}

absl::Status MemorySlots::Forget(int slot) const { return WriteHeader(Path(slot), {}); }

absl::StatusOr<const char*> MemorySlots::Read(const SavedStep& saved) {
  ASSIGN_OR_RETURN(read_, MappedFile::Readable(Path(saved.slot)));
  if (read_->size() < kHeaderBytes + saved.bytes) {
    return absl::DataLossError(absl::StrCat(Path(saved.slot), " was cut short"));
  }
  return read_->data() + kHeaderBytes;
}

}  // namespace cadre::memory
