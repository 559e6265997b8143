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
      return OnAssign(message.generation(), message.assign());
    case v1::ServerMessage::kStop:
      return OnStop(message.generation(), message.stop());
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
      return OnInspect(message.generation());
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
    // Its generations count from the start again: what we run belongs to nobody.
    stop_ordered = false;
    next_assign.reset();
    FailStoreCalls(absl::AbortedError("the server lost its state; the generation is over"));
    if (!HasProcesses()) {
      // They ended between the Join and this.
      if (joined_as != 0) SendStopped(joined_as);
      forgotten_generation = joined_as;
      generation = 0;
      workers.clear();
      return;
    }
    rejoin_when_gone = true;
    unmentioned = joined_as == 0;
    commands.push_back(Say{"the server lost its state: stopping the workers and joining afresh"});
    if (phase != Phase::kStopping || !kept.empty()) StopAlive(StopGrace());
    return;
  }
  SpeakAgain();
}

void AgentCore::Impl::OnStatus(const v1::JobStatus& status) {
  commands.push_back(ShowStatus{status});
  restarts = status.restarts();
  if (!status.checkpoint_wanted() || status.generation() != generation ||
      phase != Phase::kRunning || asked_to_save == generation) {
    return;
  }
  asked_to_save = generation;
  commands.push_back(AskForCheckpoint{generation, spec.elastic().checkpoint_signal()});
}

void AgentCore::Impl::OnRenewed(uint64_t number) {
  const auto sent = unanswered.find(number);
  if (sent == unanswered.end()) return;
  Confirm(sent->second);
  unanswered.erase(unanswered.begin(), std::next(sent));
}

void AgentCore::Impl::SpeakAgain() {
  // What is being stopped here is not this server's, though its own may have the same number.
  if (generation == 0 || rejoin_when_gone) return;
  for (auto& [local_rank, worker] : workers) {
    worker.gave_up = false;
    if (worker.pid != 0) {
      v1::NodeMessage message;
      message.mutable_worker_started()->set_local_rank(local_rank);
      message.mutable_worker_started()->set_pid(worker.pid);
      message.mutable_worker_started()->set_rejoined(worker.rejoined);
      Up(std::move(message), generation);
    }
    if (worker.exited) {
      v1::NodeMessage message;
      *message.mutable_worker_exited() = *worker.exited;
      Up(std::move(message), generation);
    }
  }
  if (hang && phase == Phase::kRunning) {
    v1::NodeMessage message;
    *message.mutable_evidence() = *hang;
    Up(std::move(message), generation);
  }
  if (stop_ordered && !Alive()) SendStopped(generation);
  for (v1::StoreRequest& request : store_calls.All()) {
    v1::NodeMessage message;
    *message.mutable_store() = std::move(request);
    Up(std::move(message), generation);
  }
  if (cancel_signal != 0) SendCancel();
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

void AgentCore::Impl::OnAssign(uint64_t assigned, const v1::Assign& assign) {
  if (leaving) return;
  if (Alive() && rejoin_when_gone) {
    next_assign = {assigned, assign};
    return;
  }
  if (assigned <= generation) return;  // a repeat, or older than what we know
  if (!Alive()) return Start(assigned, assign);
  // The order to stop was lost with a connection.
  next_assign = {assigned, assign};
  if (phase == Phase::kRunning) {
    FailStoreCalls(absl::AbortedError(
        absl::StrCat("generation ", generation, " is over; the current one is ", assigned)));
    v1::Stop stop;
    stop.set_rejoin(spec.restart().in_place());
    StopButKeep(StopGrace(), WorkersToKeep(stop), "the generation was replaced");
  }
}

void AgentCore::Impl::Start(uint64_t assigned, const v1::Assign& assign) {
  generation = started = assigned;
  stop_ordered = false;
  fenced = false;
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
    workers[local_rank].pid = before.at(local_rank).pid;
    workers[local_rank].rejoined = true;
    workers[local_rank].wrote_at = now;
    v1::NodeMessage message;
    message.mutable_worker_started()->set_local_rank(local_rank);
    message.mutable_worker_started()->set_pid(workers[local_rank].pid);
    message.mutable_worker_started()->set_rejoined(true);
    if (welcomed) Up(std::move(message), generation);
  }
  if (FenceAt() != MonoTime::Never()) commands.push_back(HoldWorkersUntil{generation, FenceAt()});
}

void AgentCore::Impl::OnStop(uint64_t stopped, const v1::Stop& stop) {
  if (generation == 0 && stopped == forgotten_generation) return;
  if (leaving) return;
  const absl::Duration grace = FromProto(stop.grace());
  if (cancel_signal != 0) cancel_by = now + grace + kOtherNodesMargin;
  // Only the server's own generation can be meant, of which nothing has started here yet.
  if (unmentioned) {
    if (next_assign && next_assign->first <= stopped) next_assign.reset();
    return SendStopped(stopped);
  }
  // The workers are being stopped already; their end is the answer.
  if (rejoin_when_gone) return;
  if (stopped < generation) return SendStopped(stopped);
  if (next_assign && next_assign->first <= stopped) next_assign.reset();
  stop_ordered = true;
  if (stop.fenced() && Alive()) {
    commands.push_back(Say{absl::StrCat("fenced: ", OneLine(stop.reason(), kMaxErrorText),
                                        "; its workers here are stopped")});
  }
  if (!Alive()) {
    // Also when it never started here: its Assign must not start it any more.
    generation = stopped;
    return SendStopped(stopped);
  }
  FailStoreCalls(absl::AbortedError(absl::StrCat(
      "generation ", generation, " is being stopped: ", OneLine(stop.reason(), kMaxErrorText))));
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
