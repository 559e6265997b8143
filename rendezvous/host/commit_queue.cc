#include "rendezvous/host/commit_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
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

CommitQueue::CommitQueue(std::unique_ptr<log::RecordLog> log, std::unique_ptr<BatchSaver> saver,
                         Host host)
    : log_(std::move(log)),
      saver_(std::move(saver)),
      host_(std::move(host)),
      compact_at_(MonoTime::FromMicros(std::numeric_limits<int64_t>::min())) {}

void CommitQueue::Add(MonoTime now, Effects effects) {
  if (!save_error_.ok()) AnswerRenewals(&effects);
  // Most lease renewals are like this; held, they would pile up.
  if (effects.append.empty() && effects.send.empty() && effects.reply.empty() &&
      effects.close.empty() && effects.notes.empty()) {
    return;
  }
  if (log_ == nullptr || (effects.append.empty() && held_.empty() && saving_.empty())) {
    return host_.deliver(std::move(effects));
  }
  Hold(std::move(effects));
  if (!save_error_.ok() && now >= retry_at_) Commit(now);
}

// With --strict-fencing a node whose renewals are not answered kills its workers before another
// node may take its place. Answering is safe: the core answers only nodes that it has not given up,
// and no node takes another's place before that is saved.
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
  // Merged with the effects before, which takes less memory, unless those close a stream: messages
  // must not be sent to a stream before its close is carried out in order.
  if (held_.empty() || !held_.back().close.empty()) return held_.push_back(std::move(effects));
  Effects& last = held_.back();
  MoveToEnd(&effects.send, &last.send);
  MoveToEnd(&effects.reply, &last.reply);
  MoveToEnd(&effects.close, &last.close);
  MoveToEnd(&effects.notes, &last.notes);
  MoveToEnd(&effects.account, &last.account);
}

void CommitQueue::Commit(MonoTime now) {
  if (!save_error_.ok() && now < retry_at_) return;
  TakeSaved(now, true);
  if (held_.empty() || (!save_error_.ok() && now < retry_at_)) return;
  if (!records_.empty()) {
    const MonoTime before = MonoNow();
    absl::Status saved = log_->Append(records_);
    if (!saved.ok()) {
      retry_at_ = now + kSaveRetry;
      return EnterSaveFailure(std::move(saved));
    }
    host_.saved(MonoNow() - before);
  }
  records_ = {};
  events_ = 0;
  if (!save_error_.ok()) {
    save_error_ = absl::OkStatus();
    host_.log_line("the state can be saved again");
  }
  Deliver(&held_);
  CompactIfDue(now);
}

void CommitQueue::CommitInBackground(MonoTime now) {
  if (!save_error_.ok()) return Commit(now);
  if (!TakeSaved(now, events_ >= kEventsPerCommit) || held_.empty() || !save_error_.ok()) return;
  // Nothing has to be saved.
  if (records_.empty()) return Commit(now);
  CompactIfDue(now);
  std::swap(saving_, held_);
  events_ = 0;
  saver_->Begin(*log_, std::exchange(records_, {}));
}

bool CommitQueue::TakeSaved(MonoTime now, bool wait) {
  if (saving_.empty()) return true;
  std::optional<BatchSaver::Outcome> outcome = saver_->Take(wait);
  if (!outcome.has_value()) return false;
  if (outcome->status.ok()) {
    host_.saved(outcome->took);
    Deliver(&saving_);
    return true;
  }
  // They go in front of the records that came later.
  outcome->records.AddAll(std::move(records_));
  records_ = std::move(outcome->records);
  MoveToEnd(&held_, &saving_);
  held_ = std::exchange(saving_, {});
  retry_at_ = now + kSaveRetry;
  EnterSaveFailure(std::move(outcome->status));
  return true;
}

void CommitQueue::EnterSaveFailure(absl::Status why) {
  if (absl::IsAborted(why)) {
    // Clients that wait ask the server that has the state now, which knows the answers.
    save_error_ = std::move(why);
    retry_at_ = MonoTime::Never();
    return;
  }
  if (save_error_ != why) {
    host_.log_line(absl::StrCat(
        why.message(),
        "; the server refuses changes until it can save again, and workers keep running"));
  }
  save_error_ = std::move(why);
  // Clients that can retry get the error at once; the repeated call gets the answer if it is saved
  // later.
  for (Effects& effects : held_) {
    Effects refused;
    for (ReplyToCall& reply : effects.reply) {
      refused.reply.push_back(
          {reply.call,
           rpc::StoreErrorReply(reply.reply.client(), reply.reply.request_id(),
                                absl::UnavailableError(absl::StrCat(
                                    save_error_.message(), "; make the same call again")))});
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
    saver_->BeginCompaction(*log_, host_.compactor());
  }
  if (!compacting_) return;
  const std::optional<absl::Status> compacted = saver_->TakeCompacted();
  if (!compacted.has_value()) return;
  compacting_ = false;
  if (compacted->ok()) return;
  compact_at_ = now + kCompactionRetry;
  host_.log_line(
      absl::StrCat("the log of the state could not be compacted: ", compacted->message()));
}

namespace {

BatchSaver::Outcome Save(log::RecordLog& log, log::RecordRows records) {
  BatchSaver::Outcome outcome;
  const MonoTime before = MonoNow();
  outcome.status = log.Append(records);
  outcome.took = MonoNow() - before;
  if (!outcome.status.ok()) outcome.records = std::move(records);
  return outcome;
}

}  // namespace

CommitThread::~CommitThread() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
  stop_compacting_ = true;
  if (compacting_.joinable()) compacting_.join();
}

void CommitThread::BeginCompaction(log::RecordLog& log, std::unique_ptr<log::Compactor> compactor) {
  const auto compact = [this, &log](std::unique_ptr<log::Compactor> with) {
    absl::Status compacted = log.Compact(*with, stop_compacting_);
    // The compactor has a copy of the whole state, so it is freed at once.
    with.reset();
    const absl::MutexLock lock(&mutex_);
    compacted_ = std::move(compacted);
  };
  try {
    compacting_ = std::thread(compact, std::move(compactor));
  } catch (const std::system_error& error) {
    const absl::MutexLock lock(&mutex_);
    compacted_ = absl::ResourceExhaustedError(error.what());
  }
}

std::optional<absl::Status> CommitThread::TakeCompacted() {
  std::optional<absl::Status> compacted;
  {
    const absl::MutexLock lock(&mutex_);
    compacted = std::exchange(compacted_, std::nullopt);
  }
  if (compacted.has_value() && compacting_.joinable()) compacting_.join();
  return compacted;
}

void CommitThread::Begin(log::RecordLog& log, log::RecordRows records) {
  const absl::MutexLock lock(&mutex_);
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    outcome_ = Save(log, std::move(records));
    return;
  }
  log_ = &log;
  records_ = std::move(records);
}

std::optional<BatchSaver::Outcome> CommitThread::Take(bool wait) {
  const absl::MutexLock lock(&mutex_);
  if (wait) mutex_.Await(absl::Condition(this, &CommitThread::IsDone));
  return std::exchange(outcome_, std::nullopt);
}

void CommitThread::Run() {
  for (;;) {
    log::RecordLog* log;
    log::RecordRows records;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CommitThread::HasToDo));
      if (log_ == nullptr) return;
      log = log_;
      records = std::move(records_);
    }
    Outcome outcome = Save(*log, std::move(records));
    const absl::MutexLock lock(&mutex_);
    log_ = nullptr;
    outcome_ = std::move(outcome);
  }
}

}  // namespace cadre::host
