#include "worker_runtime/memory/spill.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/mapped_file.h"

namespace cadre::memory {
namespace {

constexpr char kKey[] = "memory/spill";
constexpr size_t kTokenChars = 8;
// Long for a store that is there. Training waits once so long where it is away.
constexpr absl::Duration kPatience = absl::Seconds(1);
// A call that waits itself is given up sooner than one that is to be answered at once.
constexpr std::chrono::nanoseconds kHearing = std::chrono::milliseconds(1);
// That comes, that is being written, and before it that a rank may only just have begun with.
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
  // What is said late, others hear too late. First it must answer again.
  if (calls_.is_late()) {
    Ask().status().IgnoreError();
    return;
  }
  const std::vector<std::string> entries = absl::StrSplit(schedule_, ';', absl::SkipEmpty());
  const std::string before = entries.empty() ? "" : absl::StrCat(entries.back(), ";");
  const std::string token = RandomToken().substr(0, kTokenChars);
  const std::string after = absl::StrCat(before, step, " ", token, ";");
  said_.push_back(token);
  const Result<std::string> said = calls_.Make([this, after]() -> Result<std::string> {
    RETURN_IF_ERROR(worker_.Set(kKey, after));
    return after;
  });
  // Not this turn then: at the next save it says another one.
  if (!said.ok()) return;
  schedule_ = after;
  said_at_ = step;
  last_ = MonoNow();
  has_begun_ = true;
}

Result<std::string> Spill::Ask() {
  return calls_.Make([this] { return worker_.Get(kKey, kHearing); });
}

void Spill::Hear() {
  Result<std::string> said = Ask();
  if (!said.ok()) return;
  if (std::exchange(has_gone_back_, false)) outdated_ = *said;
  schedule_ = *std::move(said);
}

void Spill::GoBackTo(int64_t step) {
  step_before_ = step_before_that_ = kNone;
  schedule_.clear();
  outdated_.clear();
  has_gone_back_ = true;
  // The others hear what is outdated before something else is said.
  said_at_ = step;
}

std::string Spill::TokenFor(int64_t step) {
  const bool is_due = !has_begun_ || MonoNow() >= last_ + every_;
  if (worker_.rank() == 0) {
    if (is_due && !is_writing_ && step_before_ > said_at_) Schedule(step);
  } else if (!has_begun_ || MonoNow() >= last_ + every_ / 2) {
    // Earlier it is nobody's turn.
    Hear();
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
  if (saved.step <= step_before_) GoBackTo(saved.step);
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
    // A problem that stays is said when it begins.
    if (status.code() != written_.code()) is_said_ = status.ok();
    written_ = status;
    is_writing_ = false;
  };
  try {
    thread_ = std::thread(write);
  } catch (const std::system_error&) {
    write();  // there is no room for a thread
  }
}

void Spill::CleanUp() {
  const auto recent = said_.end() - std::min(said_.size(), kTurnsLeftAlone);
  directory_.RemoveOld({recent, said_.end()});
  if (recent == said_.begin()) return;
  std::vector<std::string> left = directory_.RemoveUnfinished({said_.begin(), recent});
  left.insert(left.end(), recent, said_.end());
  said_ = std::move(left);
}

Status Spill::TakeProblem() {
  if (is_writing_) return OkStatus();
  if (thread_.joinable()) thread_.join();
  if (std::exchange(is_said_, true)) return OkStatus();
  return Status(written_.code(), absl::StrCat("a state was not written to ", directory_.path(),
                                              ": ", written_.message()));
}

}  // namespace cadre::memory
