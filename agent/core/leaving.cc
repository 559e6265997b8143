// Methods of AgentCore::Impl: how the agent comes to its end, by a verdict, a signal, a server that
// is away for too long or does not want it.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/exits.h"
#include "agent/core/impl.h"
#include "base/exit_codes.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// How long workers may outlive the SIGKILL they were sent before the agent leaves without them.
constexpr absl::Duration kKillMargin = absl::Seconds(2);
// How long the server may take, beyond the stop grace, to act on a Cancel.
constexpr absl::Duration kCancelMargin = absl::Seconds(2);

}  // namespace

void AgentCore::Impl::OnSignal(int signal) {
  // A warning hurries nobody.
  if (signal == kWarningSignal && (departure.exit || departure.cancel_signal != 0)) return;
  if (departure.exit) {
    // The second one: what still runs is killed now.
    departure.leave_by = now + kKillMargin;
    return Stop(absl::ZeroDuration());
  }
  const std::string reason = absl::StrCat(SignalName(signal), " at node ", config.join.node());
  if (departure.cancel_signal != 0 && !departure.at_once && session.connected()) {
    // On all nodes, which hear the verdict before a server that is this node's ends with it.
    out.Add(Say{"killing the workers of all nodes (again to leave now)"});
    departure.at_once = true;
    SendCancel();
    departure.cancel_by = now + kCancelMargin;
    if (generation.HasProcesses()) Stop(absl::ZeroDuration());
    return;
  }
  if (departure.cancel_signal != 0) {
    SendLeave(v1::CANCELLED, absl::StrCat("another ", reason));
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, absl::ZeroDuration());
  }
  // A scheduler that wants this node back; an elastic job may do without it, one of the cluster
  // gets another, and one that runs without it does not miss it.
  const v1::NodeRange& nodes = session.spec().nodes();
  const bool replaceable =
      nodes.min() < nodes.max() || config.join.part() != 0 || orders.InReserve();
  // Before the Welcome too: a server that has the Join takes this node out again, and one that has
  // refused it listens no more.
  if (signal == SIGTERM && session.connected() && !config.serves && replaceable) {
    out.Add(Say{"preempted: leaving the job (again to kill)"});
    SendLeave(v1::PREEMPTED, reason);
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, session.StopGrace());
  }
  out.Add(Say{signal == kWarningSignal
                  ? "warned by the scheduler: the job ends here, to go on later"
                  : "stopping (again to kill)"});
  departure.cancel_signal = signal;
  // An agent that has just taken over workers hears from the server any moment, or that it is away.
  const bool connecting = generation.Alive() && session.away_reason().empty();
  if (!session.connected() && !connecting) {
    return Leave(Exit{StatusOfCancel(signal), "", {}, {}}, session.StopGrace());
  }
  departure.cancel_by =
      now + kCancelMargin + (generation.Alive() ? session.StopGrace() : absl::ZeroDuration());
  if (session.connected()) SendCancel();
}

void AgentCore::Impl::SendCancel() {
  v1::NodeMessage message;
  v1::Cancel& cancel = *message.mutable_cancel();
  cancel.set_signal(departure.cancel_signal);
  cancel.set_at_once(departure.at_once);
  cancel.set_reason(
      absl::StrCat(SignalName(departure.cancel_signal), " at node ", config.join.node()));
  if (departure.cancel_signal == kWarningSignal) cancel.set_cause(v1::PREEMPTED);
  out.Up(std::move(message), generation.id());
}

void AgentCore::Impl::SendLeave(v1::FailureCause cause, const std::string& reason) {
  v1::NodeMessage message;
  message.mutable_leave()->set_reason(reason);
  message.mutable_leave()->set_cause(cause);
  out.Up(std::move(message), generation.id());
}

void AgentCore::Impl::Leave(Exit exit, absl::Duration grace) {
  departure.exit = std::move(exit);
  out.Silence();
  orders.next.reset();
  if (!generation.HasProcesses()) return Finish();
  departure.leave_by = now + grace + kKillMargin;
  if (hangs.looking() && grace > absl::ZeroDuration()) {
    departure.leave_by = departure.leave_by + (hangs.over_by() - now);
  }
  if (!generation.StopsAll() || grace == absl::ZeroDuration()) Stop(grace);
}

void AgentCore::Impl::LeaveRefused(Exit exit) {
  if (!config.adopted || session.ever_welcomed()) {
    return Leave(std::move(exit), session.StopGrace());
  }
  exit.leaves_workers = true;
  absl::StrAppend(&exit.message, "; the workers it was to take over go on");
  departure.done = true;
  out.Add(std::move(exit));
}

void AgentCore::Impl::LeaveIfDue() {
  if (departure.exit) {
    if (now < departure.leave_by) return;
    if (departure.exit->message.empty()) {
      departure.exit->message = "some processes of this node did not die when they were killed";
    }
    return Finish();
  }
  if (departure.cancel_by <= now) {
    return Leave(Exit{StatusOfCancel(departure.cancel_signal),
                      absl::StrCat(session.Server(),
                                   " did not end the job in time; left without its verdict"),
                      {},
                      {}},
                 absl::ZeroDuration());
  }
  if (session.lost_for_good() && generation.id().exists() && !generation.GoesOn()) {
    return LeaveWithoutVerdict();
  }
  const absl::Duration patience = Patience();
  if (!session.away_since() || now < *session.away_since() + patience) return;
  const std::string time = absl::FormatDuration(patience);
  if (generation.Alive()) {
    SendLeave(v1::NODE_LOST, absl::StrCat("it had heard nothing of the server for ", time));
  }
  const std::string& reason = session.away_reason();
  Leave(Exit{kExitUnavailable,
             absl::StrCat(session.Server(), " could not be reached for ", time, ": ",
                          reason.empty() ? "no answer" : reason,
                          session.ever_welcomed() || config.adopted
                              ? ""
                              : "; whether the job had ended before this node came cannot be told "
                                "from here, only where it was served"),
             {},
             {}},
        session.StopGrace());
}

void AgentCore::Impl::LeaveWithoutVerdict() {
  const Workers& workers = generation.workers();
  const bool succeeded = generation.running() && !generation.failure() &&
                         std::all_of(workers.begin(), workers.end(),
                                     [](const auto& worker) { return worker.second.exited(); });
  Leave(Exit{kExitUnavailable,
             absl::StrCat(session.Server(),
                          " is gone, and with it how the job ended: ", session.away_reason(),
                          succeeded ? "; the workers of this node had all succeeded" : ""),
             {},
             {}},
        succeeded ? absl::ZeroDuration() : session.StopGrace());
}

void AgentCore::Impl::Finish() {
  FailStoreCalls(absl::AbortedError("the job is over on this node"));
  departure.done = true;
  Exit& exit = *departure.exit;
  if (exit.verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED) {
    exit.own.set_job(config.job);
    exit.own.set_generations(generation.id().number);
    exit.own.set_restarts(orders.restarts);
    const bool cancelled = exit.status > kExitSignalBase;
    if (generation.failure()) {
      *(cancelled ? exit.own.add_earlier() : exit.own.mutable_root_cause()) = *generation.failure();
    }
  }
  out.Add(std::move(exit));
}

}  // namespace cadre::agent
