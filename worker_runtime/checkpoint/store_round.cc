#include "worker_runtime/checkpoint/store_round.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre::checkpoint {
namespace {

constexpr char kOrder[] = "order";
constexpr char kOutcome[] = "outcome";

std::string ReportOf(int rank) { return absl::StrCat("report/", rank); }

}  // namespace

StoreRound::StoreRound(Worker& worker, std::string prefix, int64_t number, MonoTime deadline)
    : worker_(worker), prefix_(std::move(prefix)), number_(number), deadline_(deadline) {}

std::string StoreRound::Key(int64_t number, absl::string_view what) const {
  return absl::StrCat(prefix_, "/", number, "/", what);
}

Result<std::string> StoreRound::Get(absl::string_view what) {
  // The timeout is never 0, because then the store would report that the key does not exist.
  const absl::Duration left = std::max(deadline_ - MonoNow(), absl::Milliseconds(1));
  return worker_.Get(Key(number_, what), absl::ToChronoNanoseconds(left));
}

Status StoreRound::Order(const Result<std::string>& order) {
  return worker_.Set(Key(number_, kOrder), EncodeOutcome(order));
}

Result<std::vector<Status>> StoreRound::Collect() {
  std::vector<Status> reports(1);
  bool all_came = true;
  for (int rank = 1; rank < worker_.world_size(); ++rank) {
    const std::string who = absl::StrCat("rank ", rank, ": ");
    const Result<std::string> report = Get(ReportOf(rank));
    if (report.ok()) {
      reports.push_back(DecodeOutcome(*report, who).status());
    } else if (report.status().code() == StatusCode::kDeadlineExceeded) {
      all_came = false;
      reports.push_back(
          DeadlineExceededError(absl::StrCat("rank ", rank, " did not take part in time")));
    } else {
      return report.status();
    }
  }
  if (!all_came) return reports;
  // Every rank that reported has read the order and has left the previous round.
  for (int rank = 1; rank < worker_.world_size(); ++rank) {
    RETURN_IF_ERROR(worker_.Delete(Key(number_, ReportOf(rank))));
  }
  RETURN_IF_ERROR(worker_.Delete(Key(number_, kOrder)));
  if (number_ > 1) RETURN_IF_ERROR(worker_.Delete(Key(number_ - 1, kOutcome)));
  return reports;
}

Status StoreRound::Conclude(const Result<std::string>& outcome) {
  return worker_.Set(Key(number_, kOutcome), EncodeOutcome(outcome));
}

Result<std::string> StoreRound::AwaitOrder() {
  ASSIGN_OR_RETURN(const std::string order, Get(kOrder));
  return DecodeOutcome(order, "");
}

Status StoreRound::Report(const Status& status) {
  return worker_.Set(Key(number_, ReportOf(worker_.rank())),
                     EncodeOutcome(status.ok() ? Result<std::string>(std::string())
                                               : Result<std::string>(status)));
}

Result<std::string> StoreRound::AwaitOutcome() {
  ASSIGN_OR_RETURN(const std::string outcome, Get(kOutcome));
  return DecodeOutcome(outcome, "");
}

namespace {

// Texts of many lines fit: the store's limit is far above the 1 KiB of an error text.
constexpr size_t kMaxText = 16 * 1024;

}  // namespace

std::string EncodeOutcome(const Result<std::string>& outcome) {
  const absl::string_view text = outcome.ok() ? *outcome : outcome.status().message();
  return absl::StrCat(static_cast<int>(outcome.status().code()), "\n", text.substr(0, kMaxText));
}

Result<std::string> DecodeOutcome(absl::string_view encoded, absl::string_view who) {
  const std::vector<absl::string_view> parts = absl::StrSplit(encoded, absl::MaxSplits('\n', 1));
  int code = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &code)) {
    return InternalError(absl::StrCat(who, "its answer cannot be read"));
  }
  if (code == 0) return std::string(parts[1]);
  return Status(static_cast<StatusCode>(code), absl::StrCat(who, parts[1]));
}

}  // namespace cadre::checkpoint
