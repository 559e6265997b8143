#include "tests/faults/kill_at_commit.h"

#include <signal.h>

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre {
namespace {

class KillingLog final : public log::RecordLog {
 public:
  KillingLog(bool before, int body, std::unique_ptr<log::RecordLog> log)
      : before_(before), body_(body), log_(std::move(log)) {}

  uint64_t server_id() const override { return log_->server_id(); }
  absl::Status Append(const log::RecordRows& records) override {
    bool here = false;
    for (const v1::Record& record : records.Decoded()) {
      here = here || record.body_case() == body_;
    }
    if (here && before_) raise(SIGKILL);
    absl::Status status = log_->Append(records);
    if (here) raise(SIGKILL);
    return status;
  }
  bool WantsCompaction() const override { return log_->WantsCompaction(); }
  absl::Status Compact(log::Compactor& compactor, const std::atomic<bool>& stop) override {
    return log_->Compact(compactor, stop);
  }

 private:
  const bool before_;
  const int body_;
  const std::unique_ptr<log::RecordLog> log_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<log::RecordLog>> KillAtCommit(absl::string_view order,
                                                             std::unique_ptr<log::RecordLog> log) {
  const std::pair<std::string, std::string> words = absl::StrSplit(order, absl::MaxSplits(' ', 1));
  const auto* field = v1::Record::descriptor()->FindFieldByName(words.second);
  if ((words.first != "before" && words.first != "after") || field == nullptr ||
      field->containing_oneof() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kKillAtCommit, ": expected before|after RECORD, got '", order, "'"));
  }
  return std::make_unique<KillingLog>(words.first == "before", field->number(), std::move(log));
}

}  // namespace cadre
