// A node's directory in memory: mapped files, each of which records whether its state is complete;
// the checkpoints of one owner; and the files of each rank.
#include "worker_runtime/memory/files/memory_slots.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/reserve_bytes.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::memory {
MemorySlots::MemorySlots(std::string directory, std::string name, int count)
    : directory_(std::move(directory)), name_(std::move(name)), count_(count), written_(count) {}

std::string MemorySlots::Path(int slot) const {
  return absl::StrCat(directory_, "/", name_, ".", slot);
}

std::vector<SavedStep> MemorySlots::Complete() const {
  std::vector<SavedStep> whole;
  for (int slot = 0; slot < count_; ++slot) {
    const std::optional<SlotLabel> label = ReadLabel(Path(slot));
    if (label.has_value()) whole.push_back({*label, slot});
  }
  return whole;
}

std::optional<SavedStep> MemorySlots::Find(int64_t step, uint64_t generation) const {
  for (const SavedStep& saved : Complete()) {
    if (saved.step == step && saved.generation == generation) return saved;
  }
  return std::nullopt;
}

absl::StatusOr<char*> MemorySlots::Begin(size_t bytes) {
  std::vector<uint64_t> sequences(count_, 0);
  for (const SavedStep& saved : Complete()) sequences[saved.slot] = saved.sequence;
  const int reserved = reserved_;
  if (reserved != kNone) sequences[reserved] = std::numeric_limits<uint64_t>::max();
  const auto oldest = std::min_element(sequences.begin(), sequences.end());
  const int slot = static_cast<int>(oldest - sequences.begin());
  std::optional<MappedFile>& file = written_[slot];
  if (!file.has_value() || file->size() < kStateOffset + bytes) {
    ASSIGN_OR_RETURN(file, MappedFile::Writable(Path(slot), kStateOffset + bytes));
  }
  RETURN_IF_ERROR(EraseLabel(Path(slot)));
  begun_ = slot;
  begun_bytes_ = bytes;
  return file->data() + kStateOffset;
}

absl::Status MemorySlots::Commit(int64_t step, uint64_t generation, int world_size) {
  if (begun_ == kNone) return absl::FailedPreconditionError("no state was written");
  RETURN_IF_ERROR(DropAbove(step - 1));
  uint64_t newest = 0;
  for (const SavedStep& saved : Complete()) newest = std::max(newest, saved.sequence);
  const int slot = std::exchange(begun_, kNone);
  return WriteLabel(Path(slot), {step, generation, world_size, begun_bytes_, newest + 1});
}

absl::Status MemorySlots::DropAbove(int64_t step) {
  for (const SavedStep& saved : Complete()) {
    if (saved.step > step) RETURN_IF_ERROR(EraseLabel(Path(saved.slot)));
  }
  return absl::OkStatus();
}

namespace {

constexpr uint64_t kMagic = 0x02746b6350726443;  // "CdrPckt", format 2

// The file's layout; other processes read it. The kernel keeps the order of writes to the file and
// to its mapping, even if the writing process dies in between.
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
      // The pages that could be reserved are freed again.
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

namespace {

constexpr absl::string_view kOwn = "rank-";
constexpr absl::string_view kCopy = "copy-";

// Parses the file name; nullopt if it is not one of ours.
std::optional<RankFile> Parse(const std::filesystem::path& path) {
  const std::string whole_name = path.filename().string();
  absl::string_view name = whole_name;
  RankFile file;
  file.is_copy = absl::ConsumePrefix(&name, kCopy);
  if (!file.is_copy && !absl::ConsumePrefix(&name, kOwn)) return std::nullopt;
  const size_t dot = name.find('.');
  int slot = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &file.rank) ||
      !absl::SimpleAtoi(name.substr(dot + 1), &slot)) {
    return std::nullopt;
  }
  file.path = path.string();
  return file;
}

std::vector<RankFile> Files(const std::string& directory) {
  std::vector<RankFile> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (std::optional<RankFile> file = Parse(entry->path())) files.push_back(*std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const RankFile& a, const RankFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::string OwnName(int rank) { return absl::StrCat(kOwn, rank); }
std::string CopyName(int rank) { return absl::StrCat(kCopy, rank); }

std::vector<RankFile> RankFiles(const std::string& directory) {
  std::vector<RankFile> whole;
  for (RankFile& file : Files(directory)) {
    const std::optional<SlotLabel> label = ReadLabel(file.path);
    if (!label.has_value()) continue;
    file.label = *label;
    whole.push_back(std::move(file));
  }
  return whole;
}

absl::Status RollBack(const std::string& directory, int64_t step, uint64_t generation) {
  for (const RankFile& file : RankFiles(directory)) {
    const bool same_step = file.label.step == step;
    if (file.label.step > step || (same_step && file.label.generation != generation)) {
      RETURN_IF_ERROR(EraseLabel(file.path));
    }
  }
  return absl::OkStatus();
}

void RemoveOthers(const std::string& directory,
                  const std::function<bool(int rank, bool is_copy)>& stays) {
  for (const RankFile& file : Files(directory)) {
    std::error_code ignored;
    if (!stays(file.rank, file.is_copy)) std::filesystem::remove(file.path, ignored);
  }
}

}  // namespace cadre::memory
