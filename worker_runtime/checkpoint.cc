#include "cadre/checkpoint.h"

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/checkpoint/outcome.h"

namespace cadre {
namespace {

// Runs `task` on rank 0 and gives all ranks its outcome. The calls of a rank are counted, so that
// no one reads an earlier call's outcome; the last to leave lets the store forget it.
Result<std::string> OnRankZero(Worker& worker, absl::string_view what,
                               std::chrono::nanoseconds timeout,
                               const std::function<Result<std::string>()>& task) {
  const MonoTime deadline = MonoNow() + timeout;
  const std::string prefix = absl::StrCat("checkpoint/", what);
  ASSIGN_OR_RETURN(const int64_t call,
                   worker.Add(absl::StrCat(prefix, "/calls/", worker.rank()), 1));
  const std::string key = absl::StrCat(prefix, "/", call);
  Result<std::string> outcome;
  if (worker.rank() == 0) {
    outcome = task();
    RETURN_IF_ERROR(worker.Set(key, checkpoint::EncodeOutcome(outcome)));
  } else {
    const Result<std::string> encoded = worker.Get(key, timeout);
    if (encoded.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError(absl::StrCat("rank 0 did not come in time to call ", call,
                                                " of ", prefix, ", in which rank ", worker.rank(),
                                                " waited for it"));
    }
    RETURN_IF_ERROR(encoded.status());
    outcome = checkpoint::DecodeOutcome(*encoded, "rank 0: ");
  }
  RETURN_IF_ERROR(worker.Barrier(prefix, absl::ToChronoNanoseconds(deadline - MonoNow())));
  if (worker.rank() == 0) RETURN_IF_ERROR(worker.Delete(key));
  return outcome;
}

}  // namespace

Status SaveCheckpoint(Worker& worker, const CheckpointDirectory& directory, int64_t step,
                      const CheckpointDirectory::Writer& writer, std::chrono::nanoseconds timeout) {
  const auto save = [&]() -> Result<std::string> {
    // The store refuses a call of a generation that is over.
    const auto fence = [&] { return worker.Set("checkpoint/step", absl::StrCat(step)); };
    RETURN_IF_ERROR(directory.Save(step, worker.place().generation, writer, fence));
    return absl::StrCat(step);
  };
  ASSIGN_OR_RETURN(const std::string saved, OnRankZero(worker, "save", timeout, save));
  if (saved == absl::StrCat(step)) return OkStatus();
  return InvalidArgumentError(absl::StrCat("rank 0 saved step ", saved, " and rank ", worker.rank(),
                                           " is in step ", step,
                                           "; all ranks must save after the same step"));
}

Result<bool> CheckpointWanted(Worker& worker, std::chrono::nanoseconds timeout) {
  constexpr absl::string_view kYes = "yes";
  ASSIGN_OR_RETURN(const std::string answer,
                   OnRankZero(worker, "wanted", timeout, [&]() -> Result<std::string> {
                     return std::string(worker.MoreNodesWait() ? kYes : "no");
                   }));
  return answer == kYes;
}

Result<NewestCheckpoint> LoadNewest(Worker& worker, const CheckpointDirectory& directory,
                                    std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(const std::string announced,
                   OnRankZero(worker, "load", timeout, [&]() -> Result<std::string> {
                     ASSIGN_OR_RETURN(const NewestCheckpoint newest, directory.FindNewest());
                     if (!newest.checkpoint.has_value()) return std::string("\n");
                     const Checkpoint& found = *newest.checkpoint;
                     return absl::StrCat(CheckpointDirectory::Name(found.step, found.generation),
                                         "\n", newest.warning);
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
