#include "worker_runtime/memory/spill.h"

#include <system_error>
#include <utility>
#include <vector>

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
constexpr int64_t kAhead = 2;
constexpr size_t kTokenChars = 8;

}  // namespace

Spill::Spill(Worker& worker, std::string directory, int rank, int ranks,
             std::chrono::nanoseconds every)
    : worker_(worker), directory_(std::move(directory), rank, ranks), every_(every) {}

Spill::~Spill() {
  if (thread_.joinable()) thread_.join();
}

void Spill::Schedule(int64_t count) {
  const std::vector<std::string> entries = absl::StrSplit(schedule_, ';', absl::SkipEmpty());
  const std::string before = entries.empty() ? "" : absl::StrCat(entries.back(), ";");
  const std::string after =
      absl::StrCat(before, count + kAhead, " ", RandomToken().substr(0, kTokenChars), ";");
  // A store that does not answer just now is asked again at the next save.
  if (!worker_.Set(kKey, after).ok()) return;
  schedule_ = after;
  scheduled_ = count + kAhead;
  last_ = MonoNow();
  has_begun_ = true;
}

std::string Spill::TokenFor(int64_t count) {
  const bool is_due = !has_begun_ || MonoNow() >= last_ + every_;
  if (worker_.rank() == 0) {
    if (is_due && !is_writing_ && count >= scheduled_) Schedule(count);
  } else if (!has_begun_ || MonoNow() >= last_ + every_ / 2) {
    // Earlier it is nobody's turn.
    const Result<std::string> said = worker_.Get(kKey, std::chrono::nanoseconds(0));
    if (said.ok()) schedule_ = *said;
  }
  for (const absl::string_view entry : absl::StrSplit(schedule_, ';', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ' ');
    int64_t turn = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &turn) && turn == count) return parts[1];
  }
  return "";
}

void Spill::Committed(int64_t count, const SavedStep& saved, MemorySlots& slots) {
  const std::string token = TokenFor(count);
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
    if (status.ok() && worker_.rank() == 0) directory_.RemoveOld();
    written_ = status;
    is_writing_ = false;
  };
  try {
    thread_ = std::thread(write);
  } catch (const std::system_error&) {
    write();  // there is no room for a thread
  }
}

Status Spill::TakeProblem() {
  if (is_writing_) return OkStatus();
  if (thread_.joinable()) thread_.join();
  const Status status = std::exchange(written_, OkStatus());
  if (status.ok()) return status;
  return Status(status.code(), absl::StrCat("a state was not written to ", directory_.path(), ": ",
                                            status.message()));
}

}  // namespace cadre::memory
