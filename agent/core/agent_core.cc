#include "agent/core/agent_core.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/core/exits.h"
#include "agent/core/impl.h"
#include "base/exit_codes.h"
#include "base/text.h"

namespace cadre::agent {

AgentCore::Impl::Impl(AgentConfig c)
    : config(std::move(c)),
      out(config.job, config.incarnation),
      session(config, out),
      generation(out),
      held_port(config.join.held_port()) {
  if (!config.adopted) return;
  generation.Adopt(config.adopted->generation, config.adopted->first_rank, config.adopted->workers);
  orders.newest = config.adopted->generation.number;
  // The longest grace: the supervisor counts the one that is under way.
  if (config.adopted->stopping) Stop(session.StopGrace());
}

void AgentCore::Impl::Take(const AgentEvent& event) {
  std::visit(
      [this](const auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, LinkUp>) {
          session.Connected(now, generation.Named(), held_port);
        }
        if constexpr (std::is_same_v<T, LinkDown>) OnLinkDown(e.status);
        if constexpr (std::is_same_v<T, ServerSaid>) OnServerSaid(e.message);
        if constexpr (std::is_same_v<T, WorkerRuns>) generation.OnRuns(e, now, Tells());
        if constexpr (std::is_same_v<T, ProgramImported>) {
          generation.OnImported(e, now, Tells());
        }
        if constexpr (std::is_same_v<T, WorkerDied>) OnWorkerDied(e);
        if constexpr (std::is_same_v<T, WorkerUnkillable>) OnUnkillable(e);
        if constexpr (std::is_same_v<T, AllGone>) {
          if (!generation.OnAllGone(e)) return;
          held_port = e.held_port;
          GoOnIfClear();
        }
        if constexpr (std::is_same_v<T, WorkerMayRejoin>) generation.OnMayRejoin(e);
        if constexpr (std::is_same_v<T, WorkerWaits>) {
          if (generation.OnWaits(e, now)) GoOnIfClear();
        }
        if constexpr (std::is_same_v<T, SupervisorLost>) OnSupervisorLost(e);
        if constexpr (std::is_same_v<T, WorkerProgress>) {
          if (generation.OnProgress(e)) progress.news = true;
        }
        if constexpr (std::is_same_v<T, WorkerAlive>) generation.OnAlive(e);
        if constexpr (std::is_same_v<T, WorkerWrote>) generation.OnWrote(e);
        if constexpr (std::is_same_v<T, EvidenceFound>) OnEvidenceFound(e);
        if constexpr (std::is_same_v<T, EvidenceDone>) OnEvidenceDone(e.generation);
        if constexpr (std::is_same_v<T, StacksFound>) {
          out.Up(MessageOf(e.stacks), generation.Named());
        }
        if constexpr (std::is_same_v<T, SignalReceived>) OnSignal(e.signal);
        if constexpr (std::is_same_v<T, WorkerAsked>) OnWorkerAsked(e.request);
        if constexpr (std::is_same_v<T, UsageMeasured>) session.NodeUses(e.usage);
      },
      event);
}

void AgentCore::Impl::OnLinkDown(const absl::Status& status) {
  session.Lost(now, absl::IsNotFound(status));
  // A server that still counts on this node gives the order again; another generation may run by
  // now.
  orders.next.reset();
  if (departure.exit) return;
  const std::string reason = OneLine(status.message(), kMaxErrorText);
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return LeaveRefused(
        Exit{kExitUnavailable,
             absl::StrCat(session.Server(), " refuses this token (", reason, ")",
                          absl::IsPermissionDenied(status)
                              ? ""
                              : "; every node of a job needs the same one (--token-file)"),
             {},
             {}});
  }
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    return LeaveRefused(Exit{kExitInternal,
                             absl::StrCat(session.Server(), " does not understand this agent (",
                                          reason, "); run the same version of cadre on every node"),
                             {},
                             {}});
  }
  if (departure.cancel_signal != 0) {
    return Leave(Exit{StatusOfCancel(departure.cancel_signal), "", {}, {}}, session.StopGrace());
  }
  // How the connection ended, and then that nobody listens, is one event under running workers. Any
  // other reason why there is no connection is said: certificates that have ended, say.
  if (generation.Alive() && !session.away_reason().empty() &&
      (absl::IsNotFound(status) || absl::StrContains(reason, "connection refused"))) {
    session.IsNewReason(reason);
    return;
  }
  SayAway(reason);
}

void AgentCore::Impl::SayAway(const std::string& reason) {
  if (!session.IsNewReason(reason)) return;
  const bool strict = FenceAt() != MonoTime::Never();
  const MonoTime end = strict ? FenceAt() : *session.away_since() + Patience();
  const char* const prospect = strict ? "workers are killed in "
                               : generation.Alive() && !generation.fenced()
                                   ? "workers keep running; stops them in "
                                   : "gives up in ";
  out.Add(Say{absl::StrCat(generation.Alive() ? "lost " : "waiting for ", session.Server(), ": ",
                           reason, " (", prospect,
                           absl::FormatDuration(absl::Ceil(end - now, absl::Seconds(1))), ")")});
}

MonoTime AgentCore::Impl::FenceAt() const {
  if (generation.fenced() || !generation.HasProcesses()) return MonoTime::Never();
  return session.fence().at();
}

void AgentCore::Impl::FenceIfDue() {
  if (now < FenceAt()) return;
  generation.Fenced();
  out.Add(Say{absl::StrCat("no answer from ", session.Server(), " for ",
                           absl::FormatDuration(session.fence().patience()),
                           ": the workers are killed (--strict-fencing)")});
  FailStoreCalls(
      absl::AbortedError(absl::StrCat("generation ", generation.id().number, " is fenced")));
  Stop(absl::ZeroDuration());
}

absl::Duration AgentCore::Impl::Patience() const {
  // Workers that have all exited wait for the verdict, not for nodes.
  const bool has_worked = generation.Alive() || (session.Owns(generation.id()) && !orders.stop);
  return has_worked ? config.orphan_timeout : config.connect_timeout;
}

void AgentCore::Impl::Stop(absl::Duration grace, std::set<uint32_t> keep,
                           const std::string& reason) {
  generation.Stop(now, grace, std::move(keep), reason, hangs.holds_stop());
}

void AgentCore::Impl::FailStoreCalls(const absl::Status& status) {
  for (v1::StoreReply& reply : store_calls.FailAll(status)) {
    out.Add(StoreAnswer{std::move(reply)});
  }
}

void AgentCore::Impl::OnDeadlines() {
  if (departure.done) return;
  if (hangs.FindingsAreDue(now)) ReportFindings();
  if (hangs.over_by() <= now) OnEvidenceDone(generation.id().number);
  if (generation.running() && session.welcomed()) {
    SendProgress();
    LookIfDue();
  }
  if (session.silent_at() <= now) {
    session.Silent();
    if (!departure.exit) {
      SayAway(absl::StrCat("it is connected, and has not answered for ",
                           absl::FormatDuration(kWelcomeIsLate), "; its log may say why"));
    }
  }
  generation.OnDeadlines(now, session.welcomed(), session.StopGrace());
  LeaveIfDue();
  if (!departure.done && !departure.exit) session.RenewIfDue(now, generation.Named());
}

MonoTime AgentCore::Impl::NextDeadline() const {
  if (departure.done) return MonoTime::Never();
  MonoTime next = std::min(hangs.Deadline(), generation.Deadline(session.welcomed()));
  if (generation.running() && session.welcomed()) {
    if (progress.news) next = std::min(next, progress.due);
    if (hangs.idle()) {
      next = std::min({next, FirstHang(generation.workers(), session.spec().timeouts()),
                       hangs.LooksAt(FirstStandstill(generation.workers()))});
    }
  }
  if (departure.exit) return std::min(next, departure.leave_by);
  next = std::min({next, departure.cancel_by, session.renew_at(), session.silent_at(), FenceAt()});
  if (session.away_since()) next = std::min(next, *session.away_since() + Patience());
  return next;
}

AgentCore::AgentCore(AgentConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
AgentCore::~AgentCore() = default;

std::vector<AgentCommand> AgentCore::Step(MonoTime now, const AgentEvent& event) {
  Impl& core = *impl_;
  if (core.departure.done) return {};
  core.now = now;
  core.session.Count(now);
  if (const auto* slept = std::get_if<MachineSlept>(&event)) {
    core.session.fence().Slept(slept->duration);
  }
  // First, because the event may be the end of a worker that the supervisor has fenced.
  core.FenceIfDue();
  core.Take(event);
  core.OnDeadlines();
  return core.out.Take();
}

MonoTime AgentCore::NextDeadline() const { return impl_->NextDeadline(); }

}  // namespace cadre::agent
