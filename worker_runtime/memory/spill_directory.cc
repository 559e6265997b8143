#include "worker_runtime/memory/spill_directory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
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
  fs::create_directories(path_, error);
  Status status =
      error ? ErrnoToStatus(error.value(), absl::StrCat("cannot make ", path_)) : OkStatus();
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
  const std::string directory = Path(name);
  std::error_code error;
  fs::create_directory(directory, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("cannot make ", directory));
  const std::string temporary = absl::StrCat(directory, "/", kTemporary, rank_);
  Status status = checkpoint::WriteAndSync(temporary, {state, bytes});
  if (status.ok()) {
    status = checkpoint::Rename(temporary, absl::StrCat(directory, "/rank-", rank_, "-of-", ranks_,
                                                        "_", bytes, "_", SumOf({state, bytes})));
  }
  if (!status.ok()) {
    fs::remove(temporary, error);
    return status;
  }
  RETURN_IF_ERROR(checkpoint::Sync(directory));
  return checkpoint::Sync(path_);
}

std::vector<Spilled> SpillDirectory::Whole() const {
  std::vector<Spilled> whole;
  const std::string of = absl::StrCat("-of-", ranks_, "_");
  for (const std::string& name : Names(path_)) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value()) continue;
    const std::vector<std::string> files = Names(Path(name));
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
    for (const std::string& file : Names(Path(name))) {
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

Status SpillDirectory::Read(const std::string& name, MemorySlots& slots) const {
  const std::string prefix = absl::StrCat("rank-", rank_, "-of-", ranks_, "_");
  for (const std::string& file : Names(Path(name))) {
    const std::vector<std::string> parts = absl::StrSplit(file, '_');
    size_t bytes = 0;
    if (!absl::StartsWith(file, prefix) || parts.size() != 3 ||
        !absl::SimpleAtoi(parts[1], &bytes)) {
      continue;
    }
    ASSIGN_OR_RETURN(char* const room, slots.Begin(bytes));
    const std::string path = absl::StrCat(Path(name), "/", file);
    std::ifstream stream(path, std::ios::binary);
    stream.read(room, static_cast<std::streamsize>(bytes));
    if (static_cast<size_t>(stream.gcount()) == bytes && SumOf({room, bytes}) == parts[2]) {
      return OkStatus();
    }
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
    const std::vector<std::string> files = Names(Path(name));
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
      const std::vector<std::string> files = Names(Path(name));
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
