#include "rendezvous/host/core_host.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rendezvous/accounting/rows.h"
#include "rendezvous/host/server_view.h"
#include "rendezvous/host/state_compactor.h"
#include "rpc/store_reply.h"

namespace cadre::host {

namespace {

CoreConfig WithAccounts(CoreConfig config, bool accounts) {
  config.accounts = accounts;
  return config;
}

}  // namespace

CoreHost::CoreHost(const CoreConfig& config, LogFunction log, log::OpenedLog durable,
                   StreamRegistry& registry, const JobListCaching& list_caching,
                   AccountFunction account)
    : registry_(registry),
      log_(std::move(log)),
      account_(std::move(account)),
      core_(WithAccounts(config, account_ != nullptr)),
      commits_(std::move(durable.log), std::make_unique<CommitThread>(),
               {[this](Effects effects) { CarryOut(std::move(effects)); },
                [] { return std::make_unique<StateCompactor>(); },
                [this](const std::string& line) { Log(line); },
                [this](absl::Duration took) { counters_.CountCommit(took); }}),
      list_caching_(list_caching) {
  Replay(durable.records, {config.server_id, config.unix_ms_at_zero});
}

// A killed server may not have accounted the jobs that ended last. Those that the state has dropped
// since are still in the records, unless the log was compacted meanwhile; so a job is missing only
// if more than kMaxEndedJobs ended after it and the log was compacted while it waited to be
// accounted.
void CoreHost::Replay(const std::vector<v1::Record>& records, const accounting::RowOrigin& origin) {
  if (account_ == nullptr) {
    for (const v1::Record& record : records) core_.Apply(record);
    return;
  }
  // The newest row of each job, by the order in which they ended.
  std::map<uint64_t, v1::AccountedJob> ended;
  for (const v1::Record& record : records) {
    const std::string changed = accounting::JobChangedBy(record, core_.state());
    core_.Apply(record);
    std::optional<v1::AccountedJob> row =
        accounting::RowAfter(record, changed, core_.state(), origin);
    if (row.has_value()) ended[row->ended_order()] = *std::move(row);
  }
  for (v1::AccountedJob& row : accounting::RowsOf(core_.state(), origin)) {
    ended[row.ended_order()] = std::move(row);
  }
  std::vector<v1::AccountedJob> rows;
  rows.reserve(ended.size());
  for (auto& [order, row] : ended) rows.push_back(std::move(row));
  if (!rows.empty()) account_(std::move(rows), true);
}

void CoreHost::Handle(Event&& event) {
  counters_.Count(event);
  if (!commits_.save_error().ok() && Refuse(&event)) return;
  // Messages on a stream that the core has closed are dropped. Messages that a node sent before it
  // closed its stream are not, so the registry of open streams cannot decide this.
  const auto* received = std::get_if<NodeMessageReceived>(&event);
  if (received != nullptr && closed_by_core_.count(received->stream) > 0) return;
  if (received != nullptr && received->message.agent().has_log()) {
    log_reads_.OnChunk(received->stream, received->message.agent().log());
  }
  if (received != nullptr && received->message.has_stacks()) {
    stack_requests_.OnAnswer(received->stream, received->message.stacks());
  }
  if (const auto* closed = std::get_if<StreamClosed>(&event)) {
    closed_by_core_.erase(closed->stream);
    log_reads_.OnStreamClosed(closed->stream);
    stack_requests_.OnStreamClosed(closed->stream);
  }
  Step(event);
}

void CoreHost::Flush() {
  for (const auto& [stream, sink] : unflushed_) sink->Flush();
  unflushed_.clear();
}

MonoTime CoreHost::Due() const {
  if (commits_.WantsCommit()) return MonoTime();  // at once
  return std::min({core_.NextDeadline(), commits_.NextDeadline(), log_reads_.NextDeadline(),
                   stack_requests_.NextDeadline()});
}

bool CoreHost::IsFree() const {
  return can_save_ && commits_.save_error().ok() && !commits_.WantsCommit();
}

void CoreHost::SaveInBackground() {
  commits_.CommitInBackground(MonoNow());
  Flush();
}

void CoreHost::EndBatch(bool more, bool last) {
  // After the batch, because a Renew in it may renew a lease that is due.
  if (core_.NextDeadline() <= MonoNow()) Step(Tick{});
  const MonoTime now = MonoNow();
  if (!last && more) {
    commits_.CommitInBackground(now);
  } else if (!last && commits_.is_saving()) {
    // Events that come meanwhile are saved together with the effects that are held.
    commits_.AwaitSaved(now);
  } else {
    commits_.Commit(now);
  }
  ReportCanSave();
  Flush();
  log_reads_.Expire(MonoNow());
  stack_requests_.Expire(MonoNow());
  if (!last) return;
  const absl::Status gone = absl::UnavailableError("the server is shutting down");
  log_reads_.EndAll(gone);
  stack_requests_.EndAll(gone);
}

void CoreHost::ReportCanSave() {
  while (commits_.save_error().ok() != can_save_) {
    can_save_ = !can_save_;
    Step(CanSave{can_save_});
    commits_.Commit(MonoNow());
  }
}

void CoreHost::CommitAll() { commits_.Commit(MonoNow()); }

std::string CoreHost::NameOf(const std::string& job, const OwnerCheck& may) const {
  return core_.NameOf(job, [&](absl::string_view owner) { return !may || may(owner).ok(); });
}

absl::StatusOr<v1::JobStatus> CoreHost::Status(const std::string& job) {
  const MonoTime now = MonoNow();
  absl::StatusOr<v1::JobStatus> status = core_.Status(now, job);
  if (status.ok() || list_entries_.count(job) > 0) MarkJobChanged(now, job);
  return status;
}

CoreHost::JobList CoreHost::AllStatuses() {
  const MonoTime now = MonoNow();
  UpdateList(now);
  return list_;
}

void CoreHost::MarkJobChanged(MonoTime now, const std::string& job) {
  if (now < list_valid_until_ && !job.empty()) changed_.insert(job);
}

void CoreHost::UpdateList(MonoTime now) {
  if (now < list_valid_until_) {
    if (changed_.empty()) return;
    for (const std::string& name : changed_) {
      absl::StatusOr<v1::JobStatus> job = core_.StatusInList(now, name);
      if (job.ok()) {
        list_entries_[name] = std::make_shared<const v1::JobStatus>(*std::move(job));
      } else {
        list_entries_.erase(name);
      }
    }
  } else {
    list_entries_.clear();
    for (v1::JobStatus& job : core_.AllStatuses(now)) {
      const std::string name = job.name();
      list_entries_.emplace(name, std::make_shared<const v1::JobStatus>(std::move(job)));
    }
  }
  changed_.clear();
  std::vector<std::shared_ptr<const v1::JobStatus>> list;
  list.reserve(list_entries_.size());
  for (const auto& [name, job] : list_entries_) list.push_back(job);
  list_ =
      std::make_shared<const std::vector<std::shared_ptr<const v1::JobStatus>>>(std::move(list));
  if (now < list_valid_until_) return;
  // Rounded up, because the clock counts microseconds.
  const absl::Duration took = MonoNow() - now + absl::Microseconds(1);
  if (took >= list_caching_.cheap) list_valid_until_ = now + list_caching_.factor * took;
}

void CoreHost::Step(const Event& event) {
  const MonoTime now = MonoNow();
  Effects effects = core_.Step(now, event);
  for (const v1::Record& record : effects.append) {
    counters_.Count(record);
    MarkJobChanged(now, record.job());
    MarkJobChanged(now, record.job_created().ended_kept_as());
  }
  commits_.Add(now, std::move(effects));
}

absl::Status CoreHost::StepAndSave(const Event& event, bool* taken) {
  CommitAll();
  const bool can = commits_.save_error().ok();
  if (taken != nullptr) *taken = can;
  if (can) Step(event);
  CommitAll();
  return commits_.save_error();
}

bool CoreHost::Refuse(Event* event) {
  const absl::Status& why = commits_.save_error();
  // Another server has the state; this one is about to be stopped.
  if (absl::IsAborted(why)) return true;
  if (const auto* called = std::get_if<StoreCalled>(event)) {
    Reply({called->call, rpc::StoreErrorReply(called->request, why)});
    return true;
  }
  auto* received = std::get_if<NodeMessageReceived>(event);
  if (received == nullptr) return false;
  // A node that joined now would get no Welcome, and so would not renew its lease.
  if (received->message.has_join() || received->message.agent().has_joined()) {
    Close(received->stream, absl::UnavailableError(why.message()));
    return true;
  }
  if (!received->message.has_store()) return false;
  v1::ServerMessage message;
  message.set_job(received->message.job());
  message.set_generation(received->message.generation());
  message.set_server_id(received->message.server_id());
  *message.mutable_store() = rpc::StoreErrorReply(received->message.store(), why);
  Send(received->stream, std::move(message));
  received->message.mutable_renew();
  return false;
}

void CoreHost::CarryOut(Effects effects) {
  for (SendToStream& send : effects.send) Send(send.stream, std::move(send.message));
  for (const ReplyToCall& reply : effects.reply) Reply(reply);
  for (const CloseStream& close : effects.close) Close(close.stream, close.status);
  if (account_ && !effects.account.empty()) account_(std::move(effects.account), false);
  for (const Note& note : effects.notes) {
    Log(note.job.empty() ? note.text : absl::StrCat("job ", note.job, ": ", note.text));
  }
}

void CoreHost::Send(StreamId stream, v1::ServerMessage message) {
  auto found = unflushed_.find(stream);
  if (found == unflushed_.end()) {
    std::shared_ptr<NodeSink> sink = registry_.Find(stream);
    if (sink == nullptr) return;
    found = unflushed_.emplace(stream, std::move(sink)).first;
  }
  found->second->Send(std::move(message));
}

void CoreHost::Close(StreamId stream, const absl::Status& why) {
  unflushed_.erase(stream);
  const std::shared_ptr<NodeSink> sink = registry_.Take(stream);
  if (sink == nullptr) return;
  closed_by_core_.insert(stream);
  sink->Close(why);
}

void CoreHost::Reply(const ReplyToCall& reply) {
  if (const StreamRegistry::CallDone done = registry_.TakeCall(reply.call)) done(reply.reply);
}

void CoreHost::Log(const std::string& line) const {
  if (log_) log_(line);
}

// A request id creates one job only, however often the client retries because no answer came.
absl::StatusOr<v1::JobStatus> CoreHost::Submit(const JobSubmitted& submitted,
                                               const OwnerCheck& may) {
  const std::string& name = submitted.spec->name();
  const std::string* job = core_.SubmittedAs(name, submitted.request_id);
  bool taken = job != nullptr;
  absl::Status saved = commits_.save_error();
  if (taken) {
    const absl::Status allowed = MayUse(*job, may);
    if (!allowed.ok()) return allowed;
  } else {
    const absl::Status good =
        core_.MaySubmit(*submitted.spec, submitted.user, submitted.within, submitted.array);
    if (!good.ok()) return good;
    saved = StepAndSave(submitted, &taken);
    if (taken) job = core_.LastSubmitted();
  }
  // After the step, so that the status does not show more time left than there is.
  if (saved.ok()) return Status(*job);
  if (!taken) {
    return absl::Status(saved.code(),
                        absl::StrCat("job ", name, " was not accepted: ", saved.message()));
  }
  return absl::Status(
      saved.code(),
      absl::StrCat(
          "job ", name, " may have been accepted: ", saved.message(),
          "; it is accepted once the server can save again, unless the server is restarted "
          "before that. 'cadre status ",
          name, "' shows whether it was"));
}

template <typename JobEvent, typename Possible>
absl::StatusOr<v1::JobStatus> CoreHost::StepOnJob(JobEvent event, const OwnerCheck& may,
                                                  const Possible& possible) {
  event.job = NameOf(event.job, may);
  const absl::Status allowed = MayUse(event.job, may);
  if (!allowed.ok()) return allowed;
  const absl::Status can = possible(event);
  if (!can.ok()) return can;
  const absl::Status saved = StepAndSave(event);
  if (!saved.ok()) return saved;
  return Status(event.job);
}

absl::StatusOr<v1::JobStatus> CoreHost::Cancel(const JobCancelled& cancelled,
                                               const OwnerCheck& may) {
  return StepOnJob(cancelled, may, [this](const JobCancelled& event) -> absl::Status {
    const absl::StatusOr<v1::JobStatus> before = core_.Status(MonoNow(), event.job);
    if (!before.ok()) return before.status();
    if (IsLive(*before)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("job ", event.job, " has ended"));
  });
}

absl::StatusOr<v1::JobStatus> CoreHost::Requeue(const JobRequeued& requeued,
                                                const OwnerCheck& may) {
  return StepOnJob(requeued, may,
                   [this](const JobRequeued& event) { return core_.MayRequeue(event.job); });
}

absl::StatusOr<v1::JobStatus> CoreHost::Signal(const JobSignalled& signalled,
                                               const OwnerCheck& may) {
  return StepOnJob(signalled, may, [this](const JobSignalled& event) {
    return core_.MaySignal(event.job, event.signal);
  });
}

absl::StatusOr<v1::JobStatus> CoreHost::Update(const JobUpdated& updated, bool is_administrator,
                                               const OwnerCheck& may) {
  return StepOnJob(updated, may, [this, is_administrator](const JobUpdated& event) {
    return core_.MayUpdate(event.job, event.update, is_administrator);
  });
}

absl::StatusOr<std::vector<v1::ClusterNodeStatus>> CoreHost::Drain(const NodeDrained& drained) {
  const auto named = [&] {
    std::vector<v1::ClusterNodeStatus> nodes = core_.ClusterNodes();
    nodes.erase(std::remove_if(nodes.begin(), nodes.end(),
                               [&](const auto& node) { return node.name() != drained.node; }),
                nodes.end());
    return nodes;
  };
  if (named().empty()) {
    return absl::NotFoundError(
        absl::StrCat("no node ", drained.node, " in the cluster; see 'cadre nodes'"));
  }
  const absl::Status saved = StepAndSave(drained);
  if (!saved.ok()) return saved;
  return named();
}

absl::Status CoreHost::MayUse(const std::string& job, const OwnerCheck& may) const {
  const std::string* owner = core_.OwnerOf(job);
  return may && owner != nullptr ? may(*owner) : absl::OkStatus();
}

std::string CoreHost::OwnerOf(const std::string& job) const {
  const std::string* owner = core_.OwnerOf(job);
  return owner == nullptr ? "" : *owner;
}

void CoreHost::ReadLog(v1::ReadLogRequest request, const LogReads::Done& done,
                       const OwnerCheck& may) {
  request.set_job(NameOf(request.job(), may));
  const absl::Status allowed = MayUse(request.job(), may);
  if (!allowed.ok()) return done(allowed);
  absl::StatusOr<Core::LogSource> source = core_.FindLog(request);
  if (!source.ok()) return done(source.status());
  const absl::StatusOr<uint64_t> call =
      log_reads_.Add(source->stream, source->ended, MonoNow(), done, OwnerOf(request.job()));
  if (!call.ok()) return done(call.status());
  v1::ServerMessage message;
  v1::ReadLog* read = message.mutable_agent()->mutable_read_log();
  *read = std::move(source->read);
  read->set_call(*call);
  read->set_standard_error(request.standard_error());
  read->set_offset(request.offset());
  read->set_tail(request.tail());
  read->set_limit(kLogChunkBytes);
  // If the stream has just closed, nothing is sent, and the end of the stream fails this call.
  Send(source->stream, std::move(message));
}

void CoreHost::GetStacks(v1::GetStacksRequest request, const StackRequests::Done& done,
                         const OwnerCheck& may) {
  request.set_job(NameOf(request.job(), may));
  const absl::Status allowed = MayUse(request.job(), may);
  if (!allowed.ok()) return done(allowed);
  const absl::StatusOr<StackSources> sources = core_.FindStacks(request);
  if (!sources.ok()) return done(sources.status());
  const absl::StatusOr<uint64_t> call =
      stack_requests_.Add(*sources, request.question(), MonoNow(), done, OwnerOf(request.job()));
  if (!call.ok()) return done(call.status());
  v1::ServerMessage message;
  message.set_job(sources->job);
  message.set_generation(sources->generation);
  message.set_server_id(core_.server_id());
  message.mutable_ask_stacks()->set_call(*call);
  *message.mutable_ask_stacks()->mutable_question() = request.question();
  for (const StackSources::Node& node : sources->nodes) {
    // If the stream has just closed nothing is sent, and its end counts as the answer.
    if (node.stream.has_value()) Send(*node.stream, message);
  }
}

}  // namespace cadre::host
