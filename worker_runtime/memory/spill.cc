#include "worker_runtime/memory/spill.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "base/token.h"
#include "cadre/status.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/memory/files/memory_slots.h"

namespace cadre::memory {
namespace {

constexpr char kKey[] = "memory/spill";
constexpr size_t kTokenChars = 8;
// Long for a reachable store. Training waits this long once if the store is unreachable.
constexpr absl::Duration kPatience = absl::Seconds(1);
// Not 0: a call with a timeout is retried only for that long while the store is unreachable, and
// one without is retried for longer.
constexpr std::chrono::nanoseconds kHearing = std::chrono::milliseconds(1);
// Cleanup leaves the last turns alone: the coming one, the one that is being written, and the one
// before that, which a slow rank may only just have begun to write.
constexpr size_t kTurnsLeftAlone = 3;

}  // namespace

Spill::Spill(Worker& worker, std::string directory, int rank, int ranks,
             std::chrono::nanoseconds every)
    : worker_(worker),
      directory_(std::move(directory), rank, ranks),
      every_(every),
      calls_(kPatience) {}

Spill::~Spill() {
  if (thread_.joinable()) thread_.join();
}

void Spill::Schedule(int64_t step) {
  // An entry that is published late would be read too late. So the store must first answer in time.
  if (calls_.is_late()) {
    FetchSchedule().status().IgnoreError();
    return;
  }
  const std::vector<std::string> entries = absl::StrSplit(schedule_, ';', absl::SkipEmpty());
  const std::string before = entries.empty() ? "" : absl::StrCat(entries.back(), ";");
  const std::string token = RandomToken().substr(0, kTokenChars);
  const std::string after = absl::StrCat(before, step, " ", token, ";");
  published_.push_back(token);
  const Result<std::string> said = calls_.Make([this, after]() -> Result<std::string> {
    RETURN_IF_ERROR(worker_.Set(kKey, after));
    return after;
  });
  // This turn is skipped. At the next save rank 0 publishes another one.
  if (!said.ok()) return;
  schedule_ = after;
  published_at_ = step;
  last_ = MonoNow();
  has_begun_ = true;
}

Result<std::string> Spill::FetchSchedule() {
  return calls_.Make([this] { return worker_.Get(kKey, kHearing); });
}

void Spill::ReadSchedule() {
  Result<std::string> said = FetchSchedule();
  if (!said.ok()) return;
  if (std::exchange(has_gone_back_, false)) outdated_ = *said;
  schedule_ = *std::move(said);
}

void Spill::RollBackTo(int64_t step) {
  step_before_ = step_before_that_ = kNone;
  schedule_.clear();
  outdated_.clear();
  has_gone_back_ = true;
  // Rank 0 publishes nothing at this save and the next, so that the others read the outdated
  // entries first.
  published_at_ = step;
}

std::string Spill::TokenFor(int64_t step) {
  const bool is_due = !has_begun_ || MonoNow() >= last_ + every_;
  if (worker_.rank() == 0) {
    if (is_due && !is_writing_ && step_before_ > published_at_) Schedule(step);
  } else if (!has_begun_ || MonoNow() >= last_ + every_ / 2) {
    // Before half of the interval has passed no turn can come.
    ReadSchedule();
  }
  for (const absl::string_view entry : absl::StrSplit(schedule_, ';', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ' ');
    int64_t said_at = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &said_at) && said_at < step_before_ &&
        said_at >= step_before_that_ && !absl::StrContains(outdated_, entry)) {
      return parts[1];
    }
  }
  return "";
}

void Spill::Committed(const SavedStep& saved, MemorySlots& slots) {
  if (saved.step <= step_before_) RollBackTo(saved.step);
  const std::string token = TokenFor(saved.step);
  step_before_that_ = std::exchange(step_before_, saved.step);
  if (token.empty() || is_writing_) return;
  if (thread_.joinable()) thread_.join();
  if (worker_.rank() != 0) {
    last_ = MonoNow();
    has_begun_ = true;
  }
  is_writing_ = true;
  slots.Reserve(saved.slot);
  const auto write = [this, saved, &slots, name = SpillDirectory::Name(saved.step, token)] {
    const auto file = MapState(slots.Path(saved.slot), saved.bytes);
    Status status = file.ok() ? directory_.Write(name, file->data() + kStateOffset, saved.bytes)
                              : Status(file.status());
    slots.Reserve(std::nullopt);
    if (worker_.rank() == 0) CleanUp();
    // An error that persists is reported only when it begins.
    if (status.code() != written_.code()) is_reported_ = status.ok();
    written_ = status;
    is_writing_ = false;
  };
  try {
    thread_ = std::thread(write);
  } catch (const std::system_error&) {
    write();  // no thread could be started
  }
}

void Spill::CleanUp() {
  const auto recent = published_.end() - std::min(published_.size(), kTurnsLeftAlone);
  directory_.RemoveOld({recent, published_.end()});
  if (recent == published_.begin()) return;
  std::vector<std::string> left = directory_.RemoveUnfinished({published_.begin(), recent});
  left.insert(left.end(), recent, published_.end());
  published_ = std::move(left);
}

Status Spill::TakeProblem() {
  if (is_writing_) return OkStatus();
  if (thread_.joinable()) thread_.join();
  if (std::exchange(is_reported_, true)) return OkStatus();
  return Status(written_.code(), absl::StrCat("a state was not written to ", directory_.path(),
                                              ": ", written_.message()));
}

namespace {

namespace fs = std::filesystem;

// Returns the names in a directory; none if it cannot be read.
std::vector<std::string> Names(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// Returns the names in a step's directory. None are returned if the directory belongs to another
// user: programs unpickle states, which can run code, so a state must have been written by this
// user. errno gives the reason.
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

// Precedes the rank in the name of an unfinished file.
constexpr absl::string_view kTemporary = ".tmp-";

// Returns the number of ranks in a file's name; nullopt if it is not a rank's file.
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

std::vector<Spilled> SpillDirectory::Complete() const {
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

std::optional<std::pair<int64_t, int>> SpillDirectory::NewestExcept(int without) const {
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

std::optional<std::pair<int64_t, int>> SpillDirectory::Newest() const { return NewestExcept(0); }

std::string SpillDirectory::DescribeOtherRankCounts() const {
  const std::optional<std::pair<int64_t, int>> newest = NewestExcept(ranks_);
  if (!newest.has_value()) return "";
  return absl::StrCat("step ", newest->first, " of ", newest->second,
                      newest->second == 1 ? " rank" : " ranks");
}

std::string SpillDirectory::DescribeOtherUsers() const {
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
    // Memory is allocated only if the file has the size that its name says.
    if (fstat(opened.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
      return DataLossError(absl::StrCat(path, " is not what was written"));
    }
    ASSIGN_OR_RETURN(char* const room, slots.Begin(bytes));
    if (ReadAll(opened.get(), room, bytes) && SumOf({room, bytes}) == parts[2]) return OkStatus();
    return DataLossError(absl::StrCat(path, " is not what was written"));
  }
  // This is not NOT_FOUND, which in Latest() means that there is no state at all.
  return FailedPreconditionError(
      absl::StrCat("no ", prefix, "* in ", Path(name), ": all nodes must share ", path_));
}

void SpillDirectory::RemoveOld(const std::vector<std::string>& recent) const {
  const std::vector<Spilled> whole = Complete();
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
    // If the removal fails it is tried again next time.
    if (!is_others) checkpoint::RemoveTree(Path(name)).IgnoreError();
  }
}

std::vector<std::string> SpillDirectory::RemoveUnfinished(
    const std::vector<std::string>& tokens) const {
  std::set<std::string> whole;
  for (const Spilled& one : Complete()) whole.insert(one.name);
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

BoundedCall::~BoundedCall() {
  if (thread_.joinable()) thread_.join();
}

bool BoundedCall::is_late() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_late_;
}

Result<std::string> BoundedCall::Make(Call call) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_running_) return DeadlineExceededError("the previous call has not ended");
  // The thread has set is_running_ to false, so it ends soon and does not need the lock.
  if (thread_.joinable()) thread_.join();
  const absl::Duration timeout = is_late_ ? absl::ZeroDuration() : timeout_;
  is_running_ = true;
  try {
    thread_ = std::thread([this, call = std::move(call)] {
      const MonoTime begin = MonoNow();
      Result<std::string> answer = call();
      const std::lock_guard<std::mutex> done(mutex_);
      answer_ = std::move(answer);
      is_late_ = MonoNow() - begin > timeout_;
      is_running_ = false;
      ended_.notify_all();
    });
  } catch (const std::system_error& error) {
    is_running_ = false;
    return ResourceExhaustedError(absl::StrCat("no thread: ", error.what()));
  }
  if (WaitFor(ended_, lock, timeout, [this] { return !is_running_; })) return answer_;
  is_late_ = true;
  return DeadlineExceededError("the call has not ended yet");
}

}  // namespace cadre::memory
