#include "rendezvous/host/core_host.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rendezvous/host/commit_thread.h"
#include "rendezvous/host/server_view.h"
#include "rendezvous/host/state_shortener.h"
#include "rpc/store_reply.h"

namespace cadre::host {

namespace {

// A list that is put together so fast is made anew for everybody who asks. Another one is good for
// so many times as long as that took.
constexpr absl::Duration kListCostsNothing = absl::Milliseconds(5);
constexpr int kListRest = 10;

}  // namespace

CoreHost::CoreHost(const CoreConfig& config, LogFunction log, log::OpenedLog durable,
                   Connections& connections)
    : connections_(connections),
      log_(std::move(log)),
      core_(config),
      commits_(std::move(durable.log), std::make_unique<CommitThread>(),
               {[this](Effects effects) { CarryOut(std::move(effects)); },
                [] { return std::make_unique<StateShortener>(); },
                [this](const std::string& line) { Say(line); },
                [this](absl::Duration took) { counters_.CountCommit(took); }}) {
  for (const v1::Record& record : durable.records) core_.Apply(record);
}

void CoreHost::Handle(Event&& event) {
  counters_.Count(event);
  if (!commits_.trouble().ok() && Refuse(&event)) return;
  // Messages on a stream that the core has closed are of no interest. Those that a node sent before
  // it closed the stream itself are, so the registry of open streams is not the one to ask.
  const auto* said = std::get_if<NodeSaid>(&event);
  if (said != nullptr && closed_by_core_.count(said->stream) > 0) return;
  if (said != nullptr && said->message.agent().has_log()) {
    log_reads_.Take(said->stream, said->message.agent().log());
  }
  if (said != nullptr && said->message.has_stacks()) {
    stack_asks_.Take(said->stream, said->message.stacks());
  }
  if (const auto* closed = std::get_if<StreamClosed>(&event)) {
    closed_by_core_.erase(closed->stream);
    log_reads_.EndOfStream(closed->stream);
    stack_asks_.EndOfStream(closed->stream);
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
                   stack_asks_.NextDeadline()});
}

bool CoreHost::IsFree() const {
  return can_save_ && commits_.trouble().ok() && !commits_.WantsCommit();
}

void CoreHost::SaveBeside() {
  commits_.CommitBeside(MonoNow());
  Flush();
}

void CoreHost::EndBatch(bool more, bool last) {
  // After the batch, because a Renew in it may be what a lease is waiting for.
  if (core_.NextDeadline() <= MonoNow()) Step(Tick{});
  const MonoTime now = MonoNow();
  if (!last && more) {
    commits_.CommitBeside(now);
  } else if (!last && commits_.is_saving()) {
    // Events that come meanwhile are then saved together with the effects that are held.
    commits_.AwaitSaved(now);
  } else {
    commits_.Commit(now);
  }
  TellWhetherItCanSave();
  Flush();
  log_reads_.Expire(MonoNow());
  stack_asks_.Expire(MonoNow());
  if (!last) return;
  const absl::Status gone = absl::UnavailableError("the server goes away");
  log_reads_.EndAll(gone);
  stack_asks_.EndAll(gone);
}

void CoreHost::TellWhetherItCanSave() {
  while (commits_.trouble().ok() != can_save_) {
    can_save_ = !can_save_;
    Step(CanSave{can_save_});
    commits_.Commit(MonoNow());
  }
}

void CoreHost::Settle() { commits_.Commit(MonoNow()); }

CoreHost::JobList CoreHost::AllStatuses() {
  const MonoTime now = MonoNow();
  if (now < list_good_until_) return list_;
  list_ = std::make_shared<const std::vector<v1::JobStatus>>(core_.AllStatuses(now));
  const absl::Duration took = MonoNow() - now;
  list_good_until_ = took < kListCostsNothing ? now : now + kListRest * took;
  return list_;
}

void CoreHost::Step(const Event& event) {
  const MonoTime now = MonoNow();
  Effects effects = core_.Step(now, event);
  for (const v1::Record& record : effects.append) counters_.Count(record);
  commits_.Add(now, std::move(effects));
}

absl::Status CoreHost::StepAndSave(const Event& event, bool* taken) {
  Settle();
  const bool can = commits_.trouble().ok();
  if (taken != nullptr) *taken = can;
  if (can) Step(event);
  Settle();
  return commits_.trouble();
}

bool CoreHost::Refuse(Event* event) {
  const absl::Status& why = commits_.trouble();
  // Another server has the state; this one is about to be stopped.
  if (absl::IsAborted(why)) return true;
  if (const auto* called = std::get_if<StoreCalled>(event)) {
    Reply({called->call, rpc::StoreErrorReply(called->request, why)});
    return true;
  }
  auto* said = std::get_if<NodeSaid>(event);
  if (said == nullptr) return false;
  // One that came now would not be welcomed, and so would not renew its lease.
  if (said->message.has_join() || said->message.agent().has_joined()) {
    Close(said->stream, absl::UnavailableError(why.message()));
    return true;
  }
  if (!said->message.has_store()) return false;
  v1::ServerMessage message;
  message.set_job(said->message.job());
  message.set_generation(said->message.generation());
  message.set_server_id(said->message.server_id());
  *message.mutable_store() = rpc::StoreErrorReply(said->message.store(), why);
  Send(said->stream, std::move(message));
  said->message.mutable_renew();
  return false;
}

void CoreHost::CarryOut(Effects effects) {
  for (SendToStream& send : effects.send) Send(send.stream, std::move(send.message));
  for (const ReplyToCall& reply : effects.reply) Reply(reply);
  for (const CloseStream& close : effects.close) Close(close.stream, close.status);
  for (const Note& note : effects.notes) {
    Say(note.job.empty() ? note.text : absl::StrCat("job ", note.job, ": ", note.text));
  }
}

void CoreHost::Send(StreamId stream, v1::ServerMessage message) {
  auto found = unflushed_.find(stream);
  if (found == unflushed_.end()) {
    std::shared_ptr<NodeSink> sink = connections_.Find(stream);
    if (sink == nullptr) return;
    found = unflushed_.emplace(stream, std::move(sink)).first;
  }
  found->second->Send(std::move(message));
}

void CoreHost::Close(StreamId stream, const absl::Status& why) {
  unflushed_.erase(stream);
  const std::shared_ptr<NodeSink> sink = connections_.Take(stream);
  if (sink == nullptr) return;
  closed_by_core_.insert(stream);
  sink->Close(why);
}

void CoreHost::Reply(const ReplyToCall& reply) {
  if (const Connections::CallDone done = connections_.TakeCall(reply.call)) done(reply.reply);
}

void CoreHost::Say(const std::string& line) const {
  if (log_) log_(line);
}

// Under one number a job is made once, however often its caller asks because no answer came.
absl::StatusOr<v1::JobStatus> CoreHost::Submit(const JobSubmitted& submitted,
                                               const OwnerCheck& may) {
  const std::string& name = submitted.spec->name();
  if (!MayUse(name, may).ok()) return core_.RefuseName(name);
  bool taken = core_.WasSubmitted(name, submitted.request_id);
  const absl::Status good =
      taken ? absl::OkStatus() : core_.MaySubmit(*submitted.spec, submitted.user);
  if (!good.ok()) return good;
  const absl::Status saved = taken ? commits_.trouble() : StepAndSave(submitted, &taken);
  // Whoever was told that it is here finds it.
  list_good_until_ = MonoTime();
  // Not before the step, or more time would be left than there is at all.
  if (saved.ok()) return core_.Status(MonoNow(), name);
  if (!taken) {
    return absl::Status(saved.code(),
                        absl::StrCat("job ", name, " was not taken: ", saved.message()));
  }
  return absl::Status(
      saved.code(),
      absl::StrCat("job ", name, " may have been taken: ", saved.message(),
                   "; it is when that is mended, unless the server is started anew before. 'cadre "
                   "status ",
                   name, "' says whether it was"));
}

absl::StatusOr<v1::JobStatus> CoreHost::Cancel(const JobCancelled& cancelled,
                                               const OwnerCheck& may) {
  const absl::StatusOr<v1::JobStatus> before = core_.Status(MonoNow(), cancelled.job);
  if (!before.ok()) return before.status();
  const absl::Status allowed = MayUse(cancelled.job, may);
  if (!allowed.ok()) return allowed;
  if (!Lives(*before)) {
    return absl::FailedPreconditionError(absl::StrCat("job ", cancelled.job, " has ended"));
  }
  const absl::Status saved = StepAndSave(cancelled);
  list_good_until_ = MonoTime();
  if (!saved.ok()) return saved;
  return core_.Status(MonoNow(), cancelled.job);
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

void CoreHost::ReadLog(const v1::ReadLogRequest& request, const LogReads::Done& done,
                       const OwnerCheck& may) {
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
  // To a stream that has just gone nothing is said, and its end ends the call.
  Send(source->stream, std::move(message));
}

void CoreHost::GetStacks(const v1::GetStacksRequest& request, const StackAsks::Done& done,
                         const OwnerCheck& may) {
  const absl::Status allowed = MayUse(request.job(), may);
  if (!allowed.ok()) return done(allowed);
  const absl::StatusOr<StackSources> sources = core_.FindStacks(request);
  if (!sources.ok()) return done(sources.status());
  const absl::StatusOr<uint64_t> call =
      stack_asks_.Add(*sources, request.question(), MonoNow(), done, OwnerOf(request.job()));
  if (!call.ok()) return done(call.status());
  v1::ServerMessage message;
  message.set_job(sources->job);
  message.set_generation(sources->generation);
  message.set_server_id(core_.server_id());
  message.mutable_ask_stacks()->set_call(*call);
  *message.mutable_ask_stacks()->mutable_question() = request.question();
  for (const StackSources::Node& node : sources->nodes) {
    // To a stream that has just gone nothing is said, and its end is the answer.
    if (node.stream.has_value()) Send(*node.stream, message);
  }
}

}  // namespace cadre::host
