#include "cadre/checkpoint.h"

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// Rank 0's message to the others: a status, and what it found where that is OK.
struct Announcement {
  Status status;
  std::string text;
};

// Lines of any length travel: the store's limit is far above the 1 KiB of an error text.
constexpr size_t kMaxAnnouncedText = 16 * 1024;

std::string Encode(const Announcement& announcement) {
  const Status& status = announcement.status;
  const absl::string_view text = status.ok() ? announcement.text : status.message();
  return absl::StrCat(static_cast<int>(status.code()), "\n", text.substr(0, kMaxAnnouncedText));
}

Result<std::string> Decode(absl::string_view encoded) {
  const std::vector<absl::string_view> parts = absl::StrSplit(encoded, absl::MaxSplits('\n', 1));
  int code = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &code)) {
    return InternalError("rank 0's answer cannot be read");
  }
  if (code == 0) return std::string(parts[1]);
  return Status(static_cast<StatusCode>(code), absl::StrCat("rank 0: ", parts[1]));
}

// Runs `task` on rank 0 and gives all ranks its outcome. The calls of a rank are counted, so that
// no one reads an earlier call's outcome; the last to leave lets the store forget it.
Result<std::string> OnRankZero(Worker& worker, absl::string_view what,
                               std::chrono::nanoseconds timeout,
                               const std::function<Announcement()>& task) {
  const MonoTime deadline = MonoNow() + timeout;
  const std::string prefix = absl::StrCat("checkpoint/", what);
  ASSIGN_OR_RETURN(const int64_t call,
                   worker.Add(absl::StrCat(prefix, "/calls/", worker.rank()), 1));
  const std::string key = absl::StrCat(prefix, "/", call);
  Result<std::string> outcome;
  if (worker.rank() == 0) {
    const Announcement announcement = task();
    RETURN_IF_ERROR(worker.Set(key, Encode(announcement)));
    if (announcement.status.ok()) {
      outcome = announcement.text;
    } else {
      outcome = announcement.status;
    }
  } else {
    ASSIGN_OR_RETURN(const std::string encoded, worker.Get(key, timeout));
    outcome = Decode(encoded);
  }
  RETURN_IF_ERROR(worker.Barrier(prefix, absl::ToChronoNanoseconds(deadline - MonoNow())));
  if (worker.rank() == 0) RETURN_IF_ERROR(worker.Delete(key));
  return outcome;
}

}  // namespace

Status SaveCheckpoint(Worker& worker, const CheckpointDirectory& directory, int64_t step,
                      const CheckpointDirectory::Writer& writer, std::chrono::nanoseconds timeout) {
  return OnRankZero(worker, "save", timeout,
                    [&]() -> Announcement {
                      // The store refuses a call of a generation that is over.
                      const auto fence = [&] {
                        return worker.Set("checkpoint/step", absl::StrCat(step));
                      };
                      return {directory.Save(step, worker.place().generation, writer, fence), ""};
                    })
      .status();
}

Result<bool> CheckpointWanted(Worker& worker, std::chrono::nanoseconds timeout) {
  constexpr absl::string_view kYes = "yes";
  ASSIGN_OR_RETURN(const std::string answer,
                   OnRankZero(worker, "wanted", timeout, [&]() -> Announcement {
                     return {OkStatus(), worker.MoreNodesWait() ? std::string(kYes) : "no"};
                   }));
  return answer == kYes;
}

Result<NewestCheckpoint> LoadNewest(Worker& worker, const CheckpointDirectory& directory,
                                    std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(
      const std::string announced, OnRankZero(worker, "load", timeout, [&]() -> Announcement {
        const Result<NewestCheckpoint> newest = directory.FindNewest();
        if (!newest.ok()) return {newest.status(), ""};
        if (!newest->checkpoint.has_value()) return {OkStatus(), "\n"};
        const Checkpoint& found = *newest->checkpoint;
        return {OkStatus(), absl::StrCat(CheckpointDirectory::Name(found.step, found.generation),
                                         "\n", newest->warning)};
      }));
  const std::vector<std::string> parts = absl::StrSplit(announced, absl::MaxSplits('\n', 1));
  NewestCheckpoint newest;
  if (parts[0].empty()) return newest;
  newest.warning = parts.size() > 1 ? parts[1] : "";
  Result<Checkpoint> checkpoint = directory.Check(parts[0], /*read_data=*/false);
  if (!checkpoint.ok()) {
    return Status(checkpoint.status().code(),
                  absl::StrCat("rank ", worker.rank(),
                               " cannot read what rank 0 chose: ", checkpoint.status().message(),
                               "; all nodes must share ", directory.directory()));
  }
  newest.checkpoint = *std::move(checkpoint);
  return newest;
}

}  // namespace cadre
