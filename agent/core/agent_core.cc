#include "agent/core/agent_core.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/core/impl.h"
#include "base/exit_codes.h"
#include "base/text.h"

namespace cadre {

AgentCore::Impl::Impl(AgentConfig c) : config(std::move(c)), held_port(config.join.held_port()) {
  if (!config.adopted) return;
  phase = Phase::kRunning;
  ever_welcomed = true;
  started = config.adopted->generation;
  server_id = started.server_id;
  newest = started.number;
  spec = config.join.spec();
  for (uint32_t i = 0; i < config.adopted->workers; ++i) workers[i];
}

std::string AgentCore::Impl::Server() const {
  return config.server.empty() ? "the rendezvous server"
                               : absl::StrCat("the rendezvous server at ", config.server);
}

absl::Duration AgentCore::Impl::StopGrace() const {
  const v1::JobSpec& from = ever_welcomed ? spec : config.join.spec();
  if (!from.timeouts().has_stop_grace()) return kDefaultStopGrace;
  return absl::Seconds(from.timeouts().stop_grace().seconds()) +
         absl::Nanoseconds(from.timeouts().stop_grace().nanos());
}

absl::Duration AgentCore::Impl::Patience() const {
  // Workers that have all exited wait for the verdict, not for nodes.
  const bool has_worked = Alive() || (IsServersOwn() && !stop_ordered);
  return has_worked ? config.orphan_timeout : config.connect_timeout;
}

void AgentCore::Impl::Up(v1::NodeMessage message, const GenerationId& named) {
  // Who leaves has said so, or cannot: that its workers die now is nobody's failure.
  if (!link_up || leaving) return;
  message.set_job(config.job);
  SetGeneration(&message, named);
  message.set_incarnation(config.incarnation);
  commands.push_back(SendUp{std::move(message)});
}

void AgentCore::Impl::SendJoin() {
  join_sent_at = now;
  v1::NodeMessage message;
  *message.mutable_join() = config.join;
  // The port is the workers' while they run.
  message.mutable_join()->set_held_port(Alive() ? 0 : held_port);
  Up(std::move(message), Named());
}

void AgentCore::Impl::SendRenew() {
  v1::NodeMessage message;
  message.mutable_renew();
  if (config.strict_fencing) {
    message.mutable_renew()->set_number(++renewals);
    unanswered[renewals] = now;
    if (unanswered.size() > kRenewalsMax) unanswered.erase(unanswered.begin());
  }
  Up(std::move(message), Named());
}

void AgentCore::Impl::Confirm(MonoTime sent_at) {
  confirmed_at = std::max(confirmed_at, sent_at);
  if (FenceAt() != MonoTime::Never()) {
    commands.push_back(HoldWorkersUntil{started.number, FenceAt()});
  }
}

MonoTime AgentCore::Impl::FenceAt() const {
  if (!config.strict_fencing || fenced || !HasProcesses()) return MonoTime::Never();
  const MonoTime held = config.adopted ? config.adopted->held_until : MonoTime();
  return std::max(held, confirmed_at + lease * kFencePart);
}

void AgentCore::Impl::FenceIfDue() {
  if (now < FenceAt()) return;
  fenced = true;
  commands.push_back(Say{absl::StrCat("no answer from ", Server(), " for ",
                                      absl::FormatDuration(lease * kFencePart),
                                      ": the workers are killed (--strict-fencing)")});
  FailStoreCalls(absl::AbortedError(absl::StrCat("generation ", started.number, " is fenced")));
  StopAlive(absl::ZeroDuration());
}

void AgentCore::Impl::SendStopped(const GenerationId& stopped) {
  v1::NodeMessage message;
  message.mutable_node_stopped()->set_held_port(Alive() ? 0 : held_port);
  Up(std::move(message), stopped);
}

void AgentCore::Impl::SendCancel() {
  v1::NodeMessage message;
  message.mutable_cancel()->set_signal(cancel_signal);
  message.mutable_cancel()->set_reason(
      absl::StrCat(SignalName(cancel_signal), " at node ", config.join.node()));
  if (cancel_signal == kWarningSignal) message.mutable_cancel()->set_cause(v1::PREEMPTED);
  Up(std::move(message), started);
}

int AgentCore::Impl::CancelStatus() const {
  return cancel_signal == kWarningSignal ? kExitTryLater : kExitSignalBase + cancel_signal;
}

void AgentCore::Impl::FailStoreCalls(const absl::Status& status) {
  for (v1::StoreReply& reply : store_calls.FailAll(status)) {
    commands.push_back(StoreAnswer{std::move(reply)});
  }
}

void AgentCore::Impl::OnLinkUp() {
  link_up = true;
  welcomed = false;
  unanswered.clear();
  SendJoin();
}

void AgentCore::Impl::OnLinkDown(const absl::Status& status) {
  link_up = false;
  welcomed = false;
  renew_at = MonoTime::Never();
  // A server that still counts on this node gives the order again; another generation may run by
  // now.
  next_assign.reset();
  if (leaving) return;
  if (!away_since) away_since = now;
  const std::string reason = OneLine(status.message(), kMaxErrorText);
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return LeaveRefused(Exit{kExitUnavailable,
                             absl::StrCat(Server(), " refuses this token (", reason,
                                          "); every node of a job needs the same one"),
                             {},
                             {}});
  }
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    return LeaveRefused(Exit{kExitInternal,
                             absl::StrCat(Server(), " does not understand this agent (", reason,
                                          "); run the same version of cadre on every node"),
                             {},
                             {}});
  }
  if (cancel_signal != 0) {
    return Leave(Exit{CancelStatus(), "", {}, {}}, StopGrace());
  }
  if (reason == away_reason) return;
  away_reason = reason;
  commands.push_back(Say{absl::StrCat(Alive() ? "lost " : "waiting for ", Server(), ": ", reason,
                                      " (", Prospect(), ")")});
}

std::string AgentCore::Impl::Prospect() const {
  const bool strict = FenceAt() != MonoTime::Never();
  const MonoTime end = strict ? FenceAt() : *away_since + Patience();
  const std::string left = absl::FormatDuration(absl::Ceil(end - now, absl::Seconds(1)));
  if (strict) return absl::StrCat("workers are killed in ", left);
  if (Alive() && !fenced) return absl::StrCat("workers keep running; stops them in ", left);
  return absl::StrCat("gives up in ", left);
}

void AgentCore::Impl::StopAlive(absl::Duration grace) { StopButKeep(grace, {}, ""); }

void AgentCore::Impl::Leave(Exit exit, absl::Duration grace) {
  leaving = std::move(exit);
  next_assign.reset();
  if (!HasProcesses()) return Finish();
  leave_by = now + grace + kKillMargin;
  if (looking && grace > absl::ZeroDuration()) leave_by = leave_by + (looking_by - now);
  if (phase != Phase::kStopping || !kept.empty() || grace == absl::ZeroDuration()) {
    StopAlive(grace);
  }
}

void AgentCore::Impl::LeaveRefused(Exit exit) {
  if (!config.adopted || taken) return Leave(std::move(exit), StopGrace());
  exit.leaves_workers = true;
  absl::StrAppend(&exit.message, "; the workers it was to take over go on");
  phase = Phase::kDone;
  commands.push_back(std::move(exit));
}

void AgentCore::Impl::Finish() {
  FailStoreCalls(absl::AbortedError("the job is over on this node"));
  phase = Phase::kDone;
  if (leaving->verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED) leaving->own = OwnVerdict();
  commands.push_back(*std::move(leaving));
}

v1::Verdict AgentCore::Impl::OwnVerdict() const {
  v1::Verdict own;
  own.set_job(config.job);
  own.set_generations(started.number);
  own.set_restarts(restarts);
  if (!failure.has_value()) return own;
  const bool cancelled = leaving->status > kExitSignalBase;
  *(cancelled ? own.add_earlier() : own.mutable_root_cause()) = *failure;
  return own;
}

void AgentCore::Impl::OnDeadlines() {
  if (phase == Phase::kDone) return;
  OnProgressDeadlines();
  OnRejoinDeadlines();
  if (leaving) {
    if (now < leave_by) return;
    if (leaving->message.empty()) {
      leaving->message = "some processes of this node did not die when they were killed";
    }
    return Finish();
  }
  if (cancel_by <= now) {
    return Leave(Exit{CancelStatus(),
                      absl::StrCat(Server(),
                                   " did not end the job in time; left without its "
                                   "verdict"),
                      {},
                      {}},
                 absl::ZeroDuration());
  }
  if (away_since) {
    const absl::Duration patience = Patience();
    if (*away_since + patience <= now) {
      if (Alive()) {
        v1::NodeMessage leave;
        leave.mutable_leave()->set_reason(absl::StrCat("it had heard nothing of the server for ",
                                                       absl::FormatDuration(patience)));
        leave.mutable_leave()->set_cause(v1::NODE_LOST);
        Up(std::move(leave), started);
      }
      const std::string why = away_reason.empty() ? "no answer" : away_reason;
      return Leave(Exit{kExitUnavailable,
                        absl::StrCat(Server(), " could not be reached for ",
                                     absl::FormatDuration(patience), ": ", why),
                        {},
                        {}},
                   StopGrace());
    }
  }
  if (renew_at <= now) {
    SendRenew();
    renew_at = now + lease / 3;
  }
}

AgentCore::AgentCore(AgentConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
AgentCore::~AgentCore() = default;

std::vector<AgentCommand> AgentCore::Step(MonoTime now, const AgentEvent& event) {
  Impl& core = *impl_;
  if (core.phase == Impl::Phase::kDone) return {};
  core.now = now;
  if (!core.away_since && !core.welcomed) core.away_since = now;
  // First, because the event may be the end of a worker that the supervisor has fenced.
  core.FenceIfDue();
  std::visit(
      [&core](const auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, LinkUp>) core.OnLinkUp();
        if constexpr (std::is_same_v<T, LinkDown>) core.OnLinkDown(e.status);
        if constexpr (std::is_same_v<T, ServerSaid>) core.OnServerSaid(e.message);
        if constexpr (std::is_same_v<T, WorkerRuns>) core.OnWorkerRuns(e);
        if constexpr (std::is_same_v<T, WorkerDied>) core.OnWorkerDied(e);
        if constexpr (std::is_same_v<T, AllGone>) core.OnAllGone(e);
        if constexpr (std::is_same_v<T, WorkerMayRejoin>) core.OnWorkerMayRejoin(e);
        if constexpr (std::is_same_v<T, WorkerWaits>) core.OnWorkerWaits(e);
        if constexpr (std::is_same_v<T, SupervisorLost>) core.OnSupervisorLost();
        if constexpr (std::is_same_v<T, WorkerProgress>) core.OnProgress(e);
        if constexpr (std::is_same_v<T, WorkerAlive>) core.OnAlive(e);
        if constexpr (std::is_same_v<T, WorkerWrote>) core.OnWrote(e);
        if constexpr (std::is_same_v<T, EvidenceFound>) core.OnEvidenceFound(e);
        if constexpr (std::is_same_v<T, EvidenceDone>) core.OnEvidenceDone(e);
        if constexpr (std::is_same_v<T, SignalReceived>) core.OnSignal(e.signal);
        if constexpr (std::is_same_v<T, WorkerAsked>) core.OnWorkerAsked(e.request);
      },
      event);
  core.OnDeadlines();
  return std::exchange(core.commands, {});
}

MonoTime AgentCore::NextDeadline() const {
  const Impl& core = *impl_;
  if (core.phase == Impl::Phase::kDone) return MonoTime::Never();
  const MonoTime next = std::min({core.leaving ? core.leave_by : MonoTime::Never(),
                                  core.ProgressDeadline(), core.RejoinDeadline()});
  if (core.leaving) return next;
  MonoTime other = std::min({core.cancel_by, core.renew_at, core.FenceAt()});
  if (core.away_since) other = std::min(other, *core.away_since + core.Patience());
  return std::min(next, other);
}

}  // namespace cadre
