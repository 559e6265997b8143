// What the agent does when something happens on its own node.
#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/exits.h"
#include "agent/core/impl.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rpc/store_reply.h"

namespace cadre {

void AgentCore::Impl::OnWorkerRuns(const WorkerRuns& event) {
  if (!Alive() || event.generation != started.number) return;
  Worker& worker = workers[event.local_rank];
  worker.pid = event.pid;
  worker.wrote_at = now;
  if (welcomed && IsServersOwn()) SayWorkerStarted(event.local_rank, worker);
}

void AgentCore::Impl::OnWorkerDied(const WorkerDied& event) {
  if (HasProcesses() && event.generation == started.number && kept.count(event.local_rank) != 0) {
    OnKeptWorkerDied(event.local_rank);
  }
  if (!Alive() || event.generation != started.number) return;
  Worker& worker = workers[event.local_rank];
  if (worker.exited) return;
  v1::WorkerExited exited;
  exited.set_local_rank(event.local_rank);
  *exited.mutable_exit() = event.exit;
  exited.set_cause(ClassifyExit(event.exit, phase == Phase::kStopping));
  if (event.evidence) *exited.mutable_evidence() = *event.evidence;
  exited.set_late(worker.late);
  if (fenced) {
    exited.set_cause(v1::NODE_LOST);
    exited.mutable_exit()->set_ended_with(absl::StrCat("the server had not answered for ",
                                                       absl::FormatDuration(lease * kFencePart),
                                                       " (--strict-fencing)"));
  }
  if (!failure && phase == Phase::kRunning && !fenced && exited.cause() != 0) {
    failure = FailureOf(exited, first_rank, config.join.node(), started.number);
    if (!welcomed) {
      commands.push_back(
          Say{absl::StrCat(failure->message(), "; the server hears of it when it can be reached")});
    }
  }
  worker.exited = exited;
  // Another server announced the generation: this one is told of its end alone.
  if (!welcomed || !IsServersOwn()) return;
  // How far it came is news for the last time.
  progress_due = MonoTime();
  SendProgress();
  v1::NodeMessage message;
  *message.mutable_worker_exited() = std::move(exited);
  Up(std::move(message), started);
}

void AgentCore::Impl::OnAllGone(const AllGone& event) {
  if (!Alive() || event.generation != started.number || event.kept != kept) return;
  held_port = event.held_port;
  others_gone = true;
  EndGenerationIfClear();
}

void AgentCore::Impl::OnSupervisorLost() {
  v1::NodeMessage message;
  message.mutable_leave()->set_reason("the supervisor of this node's workers died");
  message.mutable_leave()->set_cause(v1::NODE_LOST);
  Up(std::move(message), started);
  const bool had_workers = Alive();
  phase = Phase::kIdle;
  if (!leaving) {
    leaving = Exit{kExitInternal,
                   had_workers ? "cadre-supervisor died; the workers of this node were killed"
                               : "cadre-supervisor died",
                   {},
                   {}};
  }
  Finish();
}

void AgentCore::Impl::OnSignal(int signal) {
  // A warning hurries nobody.
  if (signal == kWarningSignal && (leaving || cancel_signal != 0)) return;
  if (leaving) {
    // The second one: what still runs is killed now.
    leave_by = now + kKillMargin;
    return StopAlive(absl::ZeroDuration());
  }
  const std::string reason = absl::StrCat(SignalName(signal), " at node ", config.join.node());
  v1::NodeMessage message;
  if (cancel_signal != 0) {
    message.mutable_leave()->set_reason(absl::StrCat("a second ", reason));
    message.mutable_leave()->set_cause(v1::CANCELLED);
    Up(std::move(message), started);
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, absl::ZeroDuration());
  }
  // A scheduler that wants this node back; an elastic job may do without it, one of the cluster
  // gets another.
  const bool replaceable = spec.nodes().min() < spec.nodes().max() || config.join.part() != 0;
  if (signal == SIGTERM && link_up && ever_welcomed && !config.serves && replaceable) {
    commands.push_back(Say{"preempted: leaving the job (again to kill)"});
    message.mutable_leave()->set_reason(reason);
    message.mutable_leave()->set_cause(v1::PREEMPTED);
    Up(std::move(message), started);
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, StopGrace());
  }
  commands.push_back(Say{signal == kWarningSignal
                             ? "warned by the scheduler: the job ends here, to go on later"
                             : "stopping (again to kill)"});
  cancel_signal = signal;
  // An agent that has just taken over workers hears from the server any moment, or that it is away.
  const bool connecting = Alive() && away_reason.empty();
  if (!link_up && !connecting) return Leave(Exit{CancelStatus(), "", {}, {}}, StopGrace());
  cancel_by = now + kCancelMargin + (Alive() ? StopGrace() : absl::ZeroDuration());
  if (link_up) SendCancel();
}

void AgentCore::Impl::OnWorkerAsked(const v1::StoreRequest& request) {
  const auto refuse = [&](const absl::Status& status) {
    commands.push_back(StoreAnswer{StoreErrorReply(request, status)});
  };
  if (phase != Phase::kRunning || leaving || request.generation() != started.number ||
      request.job() != config.job) {
    return refuse(absl::AbortedError(absl::StrCat(
        "generation ", request.generation(), " of job ", OneLine(request.job(), kMaxErrorText),
        " does not run on this node; the current one is ", started.number, " of ", config.job)));
  }
  const absl::StatusOr<bool> added = store_calls.Add(request);
  if (!added.ok()) return refuse(added.status());
  if (!*added || !welcomed) return;  // it waits already, or is sent after the next Welcome
  v1::NodeMessage message;
  *message.mutable_store() = request;
  Up(std::move(message), started);
}

}  // namespace cadre
