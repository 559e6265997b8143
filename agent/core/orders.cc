// What the agent does on each message from the server.
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/exits.h"
#include "agent/core/impl.h"
#include "base/duration.h"
#include "base/text.h"

namespace cadre {
void AgentCore::Impl::OnServerSaid(const v1::ServerMessage& message) {
  switch (message.body_case()) {
    case v1::ServerMessage::kWelcome:
      return OnWelcome(message.welcome());
    case v1::ServerMessage::kRejected:
      return OnRejected(message.rejected());
    case v1::ServerMessage::kAssign:
      return OnAssign(GenerationOf(message), message.assign());
    case v1::ServerMessage::kStop:
      return OnStop(GenerationOf(message), message.stop());
    case v1::ServerMessage::kFinished:
      return OnFinished(message.finished());
    case v1::ServerMessage::kStatus:
      return OnStatus(message.status());
    case v1::ServerMessage::kStore:
      // One that nobody waits for answers a request of a generation that was stopped.
      if (store_calls.Answered(message.store())) commands.push_back(StoreAnswer{message.store()});
      return;
    case v1::ServerMessage::kRenewed:
      return OnRenewed(message.renewed().number());
    case v1::ServerMessage::kInspect:
      return OnInspect(GenerationOf(message));
    case v1::ServerMessage::kAgent:  // of a cluster's agent, which is another program
    case v1::ServerMessage::BODY_NOT_SET:
      // A newer server's message: what an older agent cannot do it leaves.
      return;
  }
}

void AgentCore::Impl::OnWelcome(const v1::Welcome& welcome) {
  const bool forgot_us = ever_welcomed && welcome.server_id() != server_id;
  if (!away_reason.empty() && !leaving) {
    commands.push_back(Say{absl::StrCat("reached ", Server())});
    away_reason.clear();
  }
  welcomed = true;
  ever_welcomed = taken = true;
  away_since.reset();
  server_id = welcome.server_id();
  spec = welcome.spec();
  const absl::Duration offered = FromProto(welcome.lease());
  lease = offered > absl::ZeroDuration() ? offered : kDefaultLease;
  renew_at = now + lease / 3;
  Confirm(join_sent_at);
  if (forgot_us) {
    // What runs here belongs to nobody. Where the Join named it the server waits for its end, and
    // orders that.
    newest = 0;
    stop_ordered.reset();
    next_assign.reset();
    FailStoreCalls(absl::AbortedError("the server lost its state; the generation is over"));
    if (HasProcesses()) {
      commands.push_back(Say{"the server lost its state: stopping the workers and joining afresh"});
      if (phase != Phase::kStopping || !kept.empty()) StopAlive(StopGrace());
    }
  }
  SpeakAgain();
}

void AgentCore::Impl::OnStatus(const v1::JobStatus& status) {
  commands.push_back(ShowStatus{status});
  restarts = status.restarts();
  if (!status.checkpoint_wanted() || status.generation() != started.number || !IsServersOwn() ||
      phase != Phase::kRunning || asked_to_save) {
    return;
  }
  asked_to_save = true;
  commands.push_back(AskForCheckpoint{started.number, spec.elastic().checkpoint_signal()});
}

void AgentCore::Impl::OnRenewed(uint64_t number) {
  const auto sent = unanswered.find(number);
  if (sent == unanswered.end()) return;
  Confirm(sent->second);
  unanswered.erase(unanswered.begin(), std::next(sent));
}

void AgentCore::Impl::SpeakAgain() {
  for (auto& [local_rank, worker] : workers) {
    if (!IsServersOwn()) break;
    worker.gave_up = false;
    if (worker.pid != 0) SayWorkerStarted(local_rank, worker);
    if (worker.exited) {
      v1::NodeMessage message;
      *message.mutable_worker_exited() = *worker.exited;
      Up(std::move(message), started);
    }
  }
  if (hang && phase == Phase::kRunning) {
    v1::NodeMessage message;
    *message.mutable_evidence() = *hang;
    Up(std::move(message), started);
  }
  if (stop_ordered && !Alive()) SendStopped(*stop_ordered);
  for (v1::StoreRequest& request : store_calls.All()) {
    v1::NodeMessage message;
    *message.mutable_store() = std::move(request);
    Up(std::move(message), started);
  }
  if (cancel_signal != 0) SendCancel();
}

void AgentCore::Impl::SayWorkerStarted(uint32_t local_rank, const Worker& worker) {
  v1::NodeMessage message;
  message.mutable_worker_started()->set_local_rank(local_rank);
  message.mutable_worker_started()->set_pid(worker.pid);
  message.mutable_worker_started()->set_rejoined(worker.rejoined);
  Up(std::move(message), started);
}

void AgentCore::Impl::OnRejected(const v1::Rejected& rejected) {
  if (leaving) return;
  const auto code = static_cast<absl::StatusCode>(rejected.code());
  Exit exit{
      ExitStatusOfRejection(code),
      absl::StrCat(Server(), " refuses this node: ", OneLine(rejected.message(), kMaxErrorText)),
      {},
      {}};
  // The job is over, or none of this node's: so are its workers.
  if (code == absl::StatusCode::kFailedPrecondition) return Leave(std::move(exit), StopGrace());
  LeaveRefused(std::move(exit));
}

void AgentCore::Impl::OnAssign(const GenerationId& assigned, const v1::Assign& assign) {
  if (leaving) return;
  if (assigned.number <= newest) return;  // a repeat, or older than what we know
  if (!Alive()) return Start(assigned, assign);
  // The order to stop was lost with a connection.
  next_assign = {assigned, assign};
  if (phase == Phase::kRunning) {
    FailStoreCalls(absl::AbortedError(absl::StrCat(
        "generation ", started.number, " is over; the current one is ", assigned.number)));
    v1::Stop stop;
    stop.set_rejoin(spec.restart().in_place());
    StopButKeep(StopGrace(), WorkersToKeep(stop), "the generation was replaced");
  }
}

void AgentCore::Impl::Start(const GenerationId& assigned, const v1::Assign& assign) {
  started = assigned;
  newest = assigned.number;
  stop_ordered.reset();
  fenced = asked_to_save = false;
  failure.reset();
  phase = Phase::kRunning;
  const std::map<uint32_t, Worker> before = std::exchange(workers, {});
  progress_news = looking = inspected = false;
  findings_by = looking_by = MonoTime::Never();
  hang.reset();
  for (uint32_t i = 0; i < assign.local_world_size(); ++i) workers[i];
  first_rank = assign.first_rank();
  const std::set<uint32_t> going_on = std::exchange(kept, {});
  commands.push_back(StartWorkers{assigned, assign, going_on});
  for (const uint32_t local_rank : going_on) {
    Worker& worker = workers[local_rank];
    worker.pid = before.at(local_rank).pid;
    worker.rejoined = true;
    worker.wrote_at = now;
    if (welcomed) SayWorkerStarted(local_rank, worker);
  }
  if (FenceAt() != MonoTime::Never())
    commands.push_back(HoldWorkersUntil{started.number, FenceAt()});
}

void AgentCore::Impl::OnStop(const GenerationId& stopped, const v1::Stop& stop) {
  if (leaving) return;
  const absl::Duration grace = FromProto(stop.grace());
  if (cancel_signal != 0) cancel_by = now + grace + kOtherNodesMargin;
  const bool announced = stopped.server_id == server_id;
  if (announced && next_assign && next_assign->first.number <= stopped.number) next_assign.reset();
  // It never started here, or is over. Its Assign must not start it any more.
  const bool is_next = announced && stopped.number > newest;
  if (is_next) newest = stopped.number;
  if (!Alive() || (stopped != started && !(is_next && IsServersOwn()))) {
    if (!Alive() && (is_next || stopped == started)) stop_ordered = stopped;
    return SendStopped(stopped);
  }
  stop_ordered = stopped;
  if (stop.fenced() && announced) {
    commands.push_back(Say{absl::StrCat("fenced: ", OneLine(stop.reason(), kMaxErrorText),
                                        "; its workers here are stopped")});
  }
  FailStoreCalls(absl::AbortedError(
      absl::StrCat("generation ", started.number,
                   " is being stopped: ", OneLine(stop.reason(), kMaxErrorText))));
  if (phase == Phase::kRunning || grace < StopGrace()) {
    StopButKeep(grace, WorkersToKeep(stop), OneLine(stop.reason(), kMaxErrorText));
  }
}

void AgentCore::Impl::OnFinished(const v1::Finished& finished) {
  if (leaving) return;
  // After success nothing is left but what the workers themselves left behind.
  const bool succeeded = finished.verdict().outcome() == v1::SUCCEEDED;
  const absl::Duration grace = succeeded ? absl::ZeroDuration() : StopGrace();
  Leave(Exit{finished.verdict().exit_status(), "", finished.verdict(), finished.timeline()}, grace);
}

}  // namespace cadre
