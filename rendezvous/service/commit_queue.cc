#include "rendezvous/service/commit_queue.h"

#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "proto/store_reply.h"

namespace cadre {

CommitQueue::CommitQueue(std::unique_ptr<RecordLog> log, Host host)
    : log_(std::move(log)),
      host_(std::move(host)),
      compact_at_(MonoTime::FromMicros(std::numeric_limits<int64_t>::min())) {}

void CommitQueue::Add(MonoTime now, Effects effects) {
  // Most renewals; held, they would pile up.
  if (effects.append.empty() && effects.send.empty() && effects.reply.empty() &&
      effects.close.empty() && effects.notes.empty()) {
    return;
  }
  if (log_ == nullptr || (effects.append.empty() && held_.empty())) {
    return host_.deliver(std::move(effects));
  }
  std::move(effects.append.begin(), effects.append.end(), std::back_inserter(records_));
  effects.append.clear();
  held_.push_back(std::move(effects));
  if (!trouble_.ok() && now >= retry_at_) Commit(now);
}

void CommitQueue::Commit(MonoTime now) {
  if (held_.empty() || (!trouble_.ok() && now < retry_at_)) return;
  const MonoTime before = MonoNow();
  absl::Status saved = log_->Append(records_);
  if (!saved.ok()) {
    retry_at_ = now + kSaveRetry;
    return EnterTrouble(std::move(saved));
  }
  host_.saved(MonoNow() - before);
  records_.clear();
  if (!trouble_.ok()) {
    trouble_ = absl::OkStatus();
    host_.say("state can be saved again");
  }
  DeliverHeld();
  CompactIfDue(now);
}

void CommitQueue::EnterTrouble(absl::Status why) {
  if (absl::IsAborted(why)) {
    // Whoever waits asks the server that has the state now, which knows the answers.
    trouble_ = std::move(why);
    retry_at_ = MonoTime::Never();
    return;
  }
  if (trouble_ != why) {
    host_.say(absl::StrCat(why.message(),
                           "; changes are refused until that is mended, workers keep running"));
  }
  trouble_ = std::move(why);
  // A caller that can ask again is told so at once; a repeat finds the answer if it is saved later.
  for (Effects& effects : held_) {
    Effects refused;
    for (ReplyToCall& reply : effects.reply) {
      refused.reply.push_back(
          {reply.call,
           StoreErrorReply(reply.reply.client(), reply.reply.request_id(),
                           absl::UnavailableError(absl::StrCat(
                               trouble_.message(), "; the same call may be made again")))});
    }
    effects.reply.clear();
    if (!refused.reply.empty()) host_.deliver(std::move(refused));
  }
}

void CommitQueue::DeliverHeld() {
  std::vector<Effects> held = std::exchange(held_, {});
  for (Effects& effects : held) host_.deliver(std::move(effects));
}

void CommitQueue::CompactIfDue(MonoTime now) {
  if (now < compact_at_ || !log_->WantsCompaction()) return;
  const absl::Status compacted = log_->Compact(host_.snapshot());
  if (compacted.ok()) return;
  compact_at_ = now + kCompactionRetry;
  host_.say(absl::StrCat("the state was not made smaller: ", compacted.message()));
}

}  // namespace cadre
