// What the agent does when something happens on its own node.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/exits.h"
#include "agent/core/impl.h"

namespace cadre {

void AgentCore::Impl::OnWorkerRuns(const WorkerRuns& event) {
  if (!Alive() || event.generation != generation) return;
  workers[event.local_rank].pid = event.pid;
  if (rejoin_when_gone) return;
  v1::NodeMessage message;
  message.mutable_worker_started()->set_local_rank(event.local_rank);
  message.mutable_worker_started()->set_pid(event.pid);
  if (welcomed) Up(std::move(message), generation);
}

void AgentCore::Impl::OnWorkerDied(const WorkerDied& event) {
  if (!Alive() || event.generation != generation) return;
  Worker& worker = workers[event.local_rank];
  if (worker.exited) return;
  v1::WorkerExited exited;
  exited.set_local_rank(event.local_rank);
  *exited.mutable_exit() = event.exit;
  exited.set_cause(ClassifyExit(event.exit));
  if (fenced) {
    exited.set_cause(v1::NODE_LOST);
    exited.mutable_exit()->set_last_lines("killed because the server did not answer in time");
  }
  worker.exited = exited;
  // This server never announced the generation; the numbers of its own begin anew.
  if (rejoin_when_gone) return;
  v1::NodeMessage message;
  *message.mutable_worker_exited() = std::move(exited);
  if (welcomed) Up(std::move(message), generation);
}

void AgentCore::Impl::OnAllGone(const AllGone& event) {
  if (!Alive() || event.generation != generation) return;
  phase = Phase::kIdle;
  held_port = event.held_port;
  if (leaving) return Finish();
  if (rejoin_when_gone) {
    // The Join of this connection named the generation; the server waits for its end.
    rejoin_when_gone = false;
    stop_ordered = false;
    if (welcomed) SendStopped(generation);
    forgotten_generation = std::exchange(generation, 0);
    workers.clear();
  } else if (stop_ordered && welcomed) {
    SendStopped(generation);
  }
  if (!next_assign) return;
  const auto [assigned, assign] = *std::exchange(next_assign, std::nullopt);
  Start(assigned, assign);
}

void AgentCore::Impl::OnSupervisorLost() {
  v1::NodeMessage message;
  message.mutable_leave()->set_reason("the supervisor of this node's workers died");
  message.mutable_leave()->set_cause(v1::NODE_LOST);
  Up(std::move(message), generation);
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

void AgentCore::Impl::OnProgress(const WorkerProgress& event) {
  if (phase != Phase::kRunning || event.generation != generation) return;
  const auto worker = workers.find(event.progress.local_rank());
  if (worker == workers.end()) return;
  worker->second.progress = event.progress;
  if (worker->second.progressed_at && worker->second.step == event.progress.step()) return;
  worker->second.step = event.progress.step();
  worker->second.progressed_at = now;
  worker->second.suspected_at.reset();
}

MonoTime AgentCore::Impl::HangsAt(const Worker& worker) const {
  const absl::Duration limit = absl::Seconds(spec.timeouts().progress().seconds()) +
                               absl::Nanoseconds(spec.timeouts().progress().nanos());
  if (limit <= absl::ZeroDuration() || !worker.progressed_at || worker.exited) {
    return MonoTime::Never();
  }
  return worker.suspected_at ? *worker.suspected_at + kReadTime : *worker.progressed_at + limit;
}

void AgentCore::Impl::ReportHangs() {
  if (!welcomed || phase != Phase::kRunning) return;
  for (auto& [local_rank, worker] : workers) {
    const MonoTime look_at = HangsAt(worker);
    if (now < look_at) continue;
    if (!worker.suspected_at || now - look_at > kReadTime) {
      worker.suspected_at = now;
      continue;
    }
    v1::WorkerExited hanging;
    hanging.set_local_rank(local_rank);
    hanging.set_cause(v1::HANG);
    hanging.mutable_exit()->set_pid(worker.pid);
    hanging.mutable_exit()->set_last_lines(
        absl::StrCat("the last step it reported was ", worker.step));
    // It still runs: the server orders the stop. Its death then is nobody's news.
    worker.exited = hanging;
    v1::NodeMessage message;
    *message.mutable_worker_exited() = std::move(hanging);
    Up(std::move(message), generation);
  }
}

void AgentCore::Impl::SendProgress() {
  if (!welcomed || phase != Phase::kRunning) return;
  for (auto& [local_rank, worker] : workers) {
    if (!worker.progress) continue;
    if (worker.progress_sent && now < worker.progress_sent_at + kProgressInterval) continue;
    v1::NodeMessage message;
    *message.mutable_progress() = *std::exchange(worker.progress, std::nullopt);
    Up(std::move(message), generation);
    worker.progress_sent = true;
    worker.progress_sent_at = now;
  }
}

void AgentCore::Impl::OnSignal(int signal) {
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
    Up(std::move(message), generation);
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, absl::ZeroDuration());
  }
  commands.push_back(Say{"stopping (again to kill)"});
  if (!link_up) return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, StopGrace());
  cancel_signal = signal;
  cancel_by = now + kCancelMargin + (Alive() ? StopGrace() : absl::ZeroDuration());
  message.mutable_cancel()->set_reason(reason);
  message.mutable_cancel()->set_signal(signal);
  Up(std::move(message), generation);
}

void AgentCore::Impl::OnWorkerAsked(const v1::StoreRequest& request) {
  const auto refuse = [&](const absl::Status& status) {
    commands.push_back(StoreAnswer{RefuseStoreRequest(request, status)});
  };
  if (phase != Phase::kRunning || leaving || request.generation() != generation ||
      request.job() != config.job) {
    return refuse(absl::AbortedError(absl::StrCat(
        "generation ", request.generation(), " of job ", OneLine(request.job()),
        " does not run on this node; the current one is ", generation, " of ", config.job)));
  }
  const absl::StatusOr<bool> added = store_calls.Add(request);
  if (!added.ok()) return refuse(added.status());
  if (!*added || !welcomed) return;  // it waits already, or is sent after the next Welcome
  v1::NodeMessage message;
  *message.mutable_store() = request;
  Up(std::move(message), generation);
}

}  // namespace cadre
