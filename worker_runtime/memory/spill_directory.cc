#include "worker_runtime/memory/spill_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/checkpoint/crc32c.h"
#include "worker_runtime/checkpoint/durable_file.h"

namespace cadre::memory {
namespace {

namespace fs = std::filesystem;

// Names in a directory; none where it cannot be read.
std::vector<std::string> Names(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// Names in a step's directory. None where it is somebody else's: what is loaded is run, where a
// program unpickles it, so that it must be what this user wrote. errno says why.
std::vector<std::string> OwnNames(const std::string& path) {
  std::vector<std::string> names;
  absl::StatusOr<ScopedFd> directory = OpenOwnDirectory(path);
  DIR* const entries = directory.ok() ? fdopendir(directory->get()) : nullptr;
  if (entries == nullptr) return names;
  directory->Release();
  while (const dirent* const entry = readdir(entries)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(entries);
  return names;
}

// Of one that is not finished, before its rank.
constexpr absl::string_view kTemporary = ".tmp-";

// How many ranks' states a file is of; nullopt: it is no rank's.
std::optional<int> RanksOf(absl::string_view file) {
  const std::vector<absl::string_view> parts = absl::StrSplit(file, absl::ByAnyChar("-_"));
  int ranks = 0;
  if (parts.size() != 6 || parts[0] != "rank" || parts[2] != "of" ||
      !absl::SimpleAtoi(parts[3], &ranks)) {
    return std::nullopt;
  }
  return ranks;
}

bool ReadAll(int fd, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = read(fd, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

std::string SumOf(absl::string_view state) {
  return absl::StrCat(absl::Hex(checkpoint::ExtendCrc32c(0, state), absl::kZeroPad8));
}

}  // namespace

SpillDirectory::SpillDirectory(std::string path, int rank, int ranks)
    : path_(std::move(path)), rank_(rank), ranks_(ranks) {}

std::string SpillDirectory::Path(const std::string& name) const {
  return absl::StrCat(path_, "/", name);
}

Status SpillDirectory::Check() const {
  std::error_code error;
  Status status = MakeDirectories(path_);
  const std::string probe = Path(absl::StrCat(".probe-", rank_, "-", getpid()));
  if (status.ok()) status = checkpoint::WriteAndSync(probe, "can be written");
  fs::remove(probe, error);
  if (status.ok()) return status;
  return Status(status.code(),
                absl::StrCat("states cannot be written to the directory ", path_, ": ",
                             status.message(), "; give one that all nodes share and may write to"));
}

std::string SpillDirectory::Name(int64_t step, const std::string& token) {
  return absl::StrCat("step_", step, "_", token);
}

std::optional<int64_t> SpillDirectory::StepOf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '_');
  int64_t step = 0;
  if (parts.size() != 3 || parts[0] != "step" || !absl::SimpleAtoi(parts[1], &step) || step < 0) {
    return std::nullopt;
  }
  return step;
}

Status SpillDirectory::Write(const std::string& name, const char* state, size_t bytes) const {
  ASSIGN_OR_RETURN(const ScopedFd directory, MakeOwnDirectory(path_, name));
  const std::string temporary = absl::StrCat(kTemporary, rank_);
  const std::string path = absl::StrCat(Path(name), "/", temporary);
  ASSIGN_OR_RETURN(const ScopedFd file, OpenOwnFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
  Status status = checkpoint::WriteAndSync(file.get(), path, {state, bytes});
  const std::string whole =
      absl::StrCat("rank-", rank_, "-of-", ranks_, "_", bytes, "_", SumOf({state, bytes}));
  const int fd = directory.get();
  if (status.ok() && renameat(fd, temporary.c_str(), fd, whole.c_str()) != 0) {
    status = ErrnoToStatus(errno, absl::StrCat("cannot rename ", path, " to ", whole));
  }
  if (!status.ok()) {
    unlinkat(fd, temporary.c_str(), 0);
    return status;
  }
  if (fsync(fd) != 0) return ErrnoToStatus(errno, absl::StrCat("cannot sync ", Path(name)));
  return checkpoint::Sync(path_);
}

std::vector<Spilled> SpillDirectory::Whole() const {
  std::vector<Spilled> whole;
  const std::string of = absl::StrCat("-of-", ranks_, "_");
  for (const std::string& name : Names(path_)) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value()) continue;
    const std::vector<std::string> files = OwnNames(Path(name));
    const auto found = std::count_if(files.begin(), files.end(), [&of](const std::string& file) {
      return absl::StartsWith(file, "rank-") && absl::StrContains(file, of);
    });
    if (found == ranks_) whole.push_back({*step, name});
  }
  std::sort(whole.begin(), whole.end(), [](const Spilled& a, const Spilled& b) {
    return std::tie(a.step, a.name) > std::tie(b.step, b.name);
  });
  return whole;
}

std::optional<std::pair<int64_t, int>> SpillDirectory::NewestBut(int without) const {
  std::optional<std::pair<int64_t, int>> newest;
  for (const std::string& name : Names(path_)) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value() || (newest.has_value() && *step <= newest->first)) continue;
    std::map<int, int> files;
    for (const std::string& file : OwnNames(Path(name))) {
      if (const std::optional<int> ranks = RanksOf(file)) ++files[*ranks];
    }
    for (const auto& [ranks, count] : files) {
      if (ranks != without && count == ranks) newest = {*step, ranks};
    }
  }
  return newest;
}

std::optional<std::pair<int64_t, int>> SpillDirectory::Newest() const { return NewestBut(0); }

std::string SpillDirectory::OfOtherRanks() const {
  const std::optional<std::pair<int64_t, int>> newest = NewestBut(ranks_);
  if (!newest.has_value()) return "";
  return absl::StrCat("step ", newest->first, " of ", newest->second,
                      newest->second == 1 ? " rank" : " ranks");
}

std::string SpillDirectory::OfOtherUsers() const {
  for (const std::string& name : Names(path_)) {
    if (!StepOf(name).has_value()) continue;
    const absl::Status own = OpenOwnDirectory(Path(name)).status();
    if (absl::IsPermissionDenied(own)) return std::string(own.message());
  }
  return "";
}

Status SpillDirectory::Read(const std::string& name, MemorySlots& slots) const {
  const std::string prefix = absl::StrCat("rank-", rank_, "-of-", ranks_, "_");
  for (const std::string& file : OwnNames(Path(name))) {
    const std::vector<std::string> parts = absl::StrSplit(file, '_');
    size_t bytes = 0;
    if (!absl::StartsWith(file, prefix) || parts.size() != 3 ||
        !absl::SimpleAtoi(parts[1], &bytes)) {
      continue;
    }
    const std::string path = absl::StrCat(Path(name), "/", file);
    ASSIGN_OR_RETURN(const ScopedFd opened, OpenOwnFile(path, O_RDONLY));
    struct stat info;
    // No room is made for what a name promises and the file has not.
    if (fstat(opened.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
      return DataLossError(absl::StrCat(path, " is not what was written"));
    }
    ASSIGN_OR_RETURN(char* const room, slots.Begin(bytes));
    if (ReadAll(opened.get(), room, bytes) && SumOf({room, bytes}) == parts[2]) return OkStatus();
    return DataLossError(absl::StrCat(path, " is not what was written"));
  }
  // No NOT_FOUND, by which Latest() says that there is no state at all.
  return FailedPreconditionError(
      absl::StrCat("no ", prefix, "* in ", Path(name), ": all nodes must share ", path_));
}

void SpillDirectory::RemoveOld(const std::vector<std::string>& recent) const {
  const std::vector<Spilled> whole = Whole();
  if (whole.size() < kSpillsKept) return;
  const auto kept_end = whole.begin() + kSpillsKept;
  const int64_t oldest = std::prev(kept_end)->step;
  for (const std::string& name : Names(path_)) {
    const std::optional<int64_t> step = StepOf(name);
    const bool is_kept = std::any_of(whole.begin(), kept_end,
                                     [&name](const Spilled& one) { return one.name == name; });
    if (!step.has_value() || *step > oldest || is_kept) continue;
    const bool is_recent = std::any_of(recent.begin(), recent.end(), [&](const std::string& token) {
      return name == Name(*step, token);
    });
    if (is_recent) continue;
    const std::vector<std::string> files = OwnNames(Path(name));
    const bool is_others = std::any_of(files.begin(), files.end(), [this](const std::string& file) {
      return RanksOf(file).value_or(ranks_) != ranks_;
    });
    // What cannot be removed now is tried again next time.
    if (!is_others) checkpoint::RemoveTree(Path(name)).IgnoreError();
  }
}

std::vector<std::string> SpillDirectory::RemoveUnfinished(
    const std::vector<std::string>& tokens) const {
  std::set<std::string> whole;
  for (const Spilled& one : Whole()) whole.insert(one.name);
  const std::vector<std::string> names = Names(path_);
  std::vector<std::string> written;
  for (const std::string& token : tokens) {
    bool is_written = false;
    for (const std::string& name : names) {
      const std::optional<int64_t> step = StepOf(name);
      if (!step.has_value() || name != Name(*step, token) || whole.count(name) > 0) continue;
      const std::vector<std::string> files = OwnNames(Path(name));
      if (std::any_of(files.begin(), files.end(),
                      [](const std::string& file) { return absl::StartsWith(file, kTemporary); })) {
        is_written = true;
      } else {
        checkpoint::RemoveTree(Path(name)).IgnoreError();
      }
    }
    if (is_written) written.push_back(token);
  }
  return written;
}

}  // namespace cadre::memory
