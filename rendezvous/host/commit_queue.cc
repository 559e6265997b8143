#include "rendezvous/host/commit_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rpc/store_reply.h"

namespace cadre::host {

namespace {

template <typename T>
void MoveToEnd(std::vector<T>* from, std::vector<T>* to) {
  to->insert(to->end(), std::make_move_iterator(from->begin()),
             std::make_move_iterator(from->end()));
}

}  // namespace

CommitQueue::CommitQueue(std::unique_ptr<log::RecordLog> log, std::unique_ptr<BatchSaver> beside,
                         Host host)
    : log_(std::move(log)),
      beside_(std::move(beside)),
      host_(std::move(host)),
      compact_at_(MonoTime::FromMicros(std::numeric_limits<int64_t>::min())) {}

void CommitQueue::Add(MonoTime now, Effects effects) {
  if (!trouble_.ok()) AnswerRenewals(&effects);
  // Most renewals; held, they would pile up.
  if (effects.append.empty() && effects.send.empty() && effects.reply.empty() &&
      effects.close.empty() && effects.notes.empty()) {
    return;
  }
  if (log_ == nullptr || (effects.append.empty() && held_.empty() && saving_.empty())) {
    return host_.deliver(std::move(effects));
  }
  Hold(std::move(effects));
  if (!trouble_.ok() && now >= retry_at_) Commit(now);
}

// A node that is not answered kills its workers in time for whoever takes its place, with
// --strict-fencing. The core answers those alone that it has not given up, and nobody takes the
// place of one before that is saved.
void CommitQueue::AnswerRenewals(Effects* effects) {
  std::vector<SendToStream>& send = effects->send;
  const auto first = std::stable_partition(
      send.begin(), send.end(), [](const SendToStream& one) { return !one.message.has_renewed(); });
  Effects renewed;
  renewed.send.assign(std::make_move_iterator(first), std::make_move_iterator(send.end()));
  send.erase(first, send.end());
  if (log_->has_one_owner() && !renewed.send.empty()) host_.deliver(std::move(renewed));
}

void CommitQueue::Hold(Effects effects) {
  ++events_;
  for (const v1::Record& record : effects.append) records_.Add(record);
  effects.append.clear();
  // Together with what is said before, which takes less memory; but nothing is said to a stream
  // that was closed before it was.
  if (held_.empty() || !held_.back().close.empty()) return held_.push_back(std::move(effects));
  Effects& last = held_.back();
  MoveToEnd(&effects.send, &last.send);
  MoveToEnd(&effects.reply, &last.reply);
  MoveToEnd(&effects.close, &last.close);
  MoveToEnd(&effects.notes, &last.notes);
}

void CommitQueue::Commit(MonoTime now) {
  if (!trouble_.ok() && now < retry_at_) return;
  TakeSaved(now, true);
  if (held_.empty() || (!trouble_.ok() && now < retry_at_)) return;
  if (!records_.empty()) {
    const MonoTime before = MonoNow();
    absl::Status saved = log_->Append(records_);
    if (!saved.ok()) {
      retry_at_ = now + kSaveRetry;
      return EnterTrouble(std::move(saved));
    }
    host_.saved(MonoNow() - before);
  }
  records_ = {};
  events_ = 0;
  if (!trouble_.ok()) {
    trouble_ = absl::OkStatus();
    host_.say("state can be saved again");
  }
  Deliver(&held_);
  CompactIfDue(now);
}

void CommitQueue::CommitBeside(MonoTime now) {
  if (!trouble_.ok()) return Commit(now);
  if (!TakeSaved(now, events_ >= kEventsPerCommit) || held_.empty() || !trouble_.ok()) return;
  // Nothing to be saved, or all of it.
  if (records_.empty()) return Commit(now);
  CompactIfDue(now);
  std::swap(saving_, held_);
  events_ = 0;
  beside_->Begin(*log_, std::exchange(records_, {}));
}

bool CommitQueue::TakeSaved(MonoTime now, bool wait) {
  if (saving_.empty()) return true;
  std::optional<BatchSaver::Outcome> outcome = beside_->Take(wait);
  if (!outcome.has_value()) return false;
  if (outcome->status.ok()) {
    host_.saved(outcome->took);
    Deliver(&saving_);
    return true;
  }
  // In front of what came later.
  outcome->records.AddAll(std::move(records_));
  records_ = std::move(outcome->records);
  MoveToEnd(&held_, &saving_);
  held_ = std::exchange(saving_, {});
  retry_at_ = now + kSaveRetry;
  EnterTrouble(std::move(outcome->status));
  return true;
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
           rpc::StoreErrorReply(reply.reply.client(), reply.reply.request_id(),
                                absl::UnavailableError(absl::StrCat(
                                    trouble_.message(), "; the same call may be made again")))});
    }
    effects.reply.clear();
    if (!refused.reply.empty()) host_.deliver(std::move(refused));
  }
}

void CommitQueue::Deliver(std::vector<Effects>* effects) {
  for (Effects& some : *effects) host_.deliver(std::move(some));
  effects->clear();
}

void CommitQueue::CompactIfDue(MonoTime now) {
  if (!compacting_ && now >= compact_at_ && log_->WantsCompaction()) {
    compacting_ = true;
    beside_->BeginCompaction(*log_, host_.shortener());
  }
  if (!compacting_) return;
  const std::optional<absl::Status> compacted = beside_->TakeCompacted();
  if (!compacted.has_value()) return;
  compacting_ = false;
  if (compacted->ok()) return;
  compact_at_ = now + kCompactionRetry;
  host_.say(absl::StrCat("the state was not made smaller: ", compacted->message()));
}

}  // namespace cadre::host
