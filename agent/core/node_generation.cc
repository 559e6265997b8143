#include "agent/core/node_generation.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// How long after a worker gave the generation up the server may take to learn the cause itself,
// before the agent reports the worker.
constexpr absl::Duration kGiveUpAfter = absl::Milliseconds(500);

v1::NodeMessage StartedMessage(uint32_t local_rank, const Worker& worker) {
  v1::NodeMessage message;
  message.mutable_worker_started()->set_local_rank(local_rank);
  message.mutable_worker_started()->set_pid(worker.pid);
  message.mutable_worker_started()->set_rejoined(worker.rejoined);
  message.mutable_worker_started()->set_warm(worker.warm);
  message.mutable_worker_started()->set_why_plain(worker.why_plain);
  return message;
}

v1::NodeMessage ImportsMessage(const v1::ProgramImports& imports) {
  v1::NodeMessage message;
  *message.mutable_imports() = imports;
  return message;
}

}  // namespace

void NodeGeneration::Adopt(const GenerationId& id, uint32_t first_rank, uint32_t workers) {
  CADRE_CHECK(phase_ == Phase::kIdle && workers_.empty(), "workers are adopted before any starts");
  phase_ = Phase::kRunning;
  id_ = id;
  first_rank_ = first_rank;
  for (uint32_t i = 0; i < workers; ++i) workers_.try_emplace(i);
}

void NodeGeneration::Start(MonoTime now, const GenerationId& id, const v1::Assign& assign,
                           bool report) {
  CADRE_CHECK(!Alive(), "generation ", id.number, " starts while ", id_.number, " has processes");
  const Workers before = std::exchange(workers_, {});
  const std::set<uint32_t> going_on = std::exchange(kept_, {});
  id_ = id;
  phase_ = Phase::kRunning;
  first_rank_ = assign.first_rank();
  fenced_ = false;
  failure_.reset();
  imports_.reset();
  for (uint32_t i = 0; i < assign.local_world_size(); ++i) workers_.try_emplace(i);
  out_.Add(StartWorkers{id, assign, going_on});
  for (const uint32_t local_rank : going_on) {
    const auto kept = workers_.find(local_rank);
    CADRE_CHECK(kept != workers_.end(), "generation ", id.number, " has no local rank ", local_rank,
                ", whose process was kept");
    Worker& worker = kept->second;
    worker.state = WorkerState::kRunning;
    worker.pid = before.at(local_rank).pid;
    worker.rejoined = true;
    worker.wrote_at = now;
    if (report) out_.Send(StartedMessage(local_rank, workers_.at(local_rank)), id_);
  }
}

void NodeGeneration::Stop(MonoTime now, absl::Duration grace, std::set<uint32_t> keep,
                          const std::string& reason, bool wait_for_probe) {
  if (!HasProcesses()) return;
  // A worker that was ordered to stop cannot be kept any more.
  CADRE_CHECK(running() || std::includes(kept_.begin(), kept_.end(), keep.begin(), keep.end()),
              "a repeated stop of generation ", id_.number, " keeps more workers than before");
  phase_ = Phase::kStopping;
  kept_ = std::move(keep);
  reason_ = reason;
  grace_ = grace;
  grace_over_ = MonoTime::Never();
  // An AllGone so far can only belong to an earlier stop order, also if this one waits for a probe.
  others_gone_ = false;
  waits_for_probe_ = wait_for_probe && grace > absl::ZeroDuration();
  if (!waits_for_probe_) SendStop(now, grace);
}

void NodeGeneration::OnProbeEnded(MonoTime now) {
  if (std::exchange(waits_for_probe_, false)) SendStop(now, grace_);
}

// The workers get the order only now, so their grace begins now.
void NodeGeneration::SendStop(MonoTime now, absl::Duration grace) {
  others_gone_ = false;
  grace_over_ = now + grace;
  out_.Add(StopWorkers{id_.number, grace, kept_, reason_});
}

void NodeGeneration::Resync(bool known) {
  if (known && Alive() && imports_.has_value()) out_.Send(ImportsMessage(*imports_), id_);
  for (auto& [local_rank, worker] : workers_) {
    if (known) {
      worker.Apply(WorkerEvent::kServerIsBack);
      if (worker.pid != 0) out_.Send(StartedMessage(local_rank, worker), id_);
      if (worker.exited()) out_.Send(ExitedMessage(worker), id_);
    }
    if (worker.unkillable && Alive()) out_.Send(UnkillableMessage(worker), id_);
  }
}

std::string NodeGeneration::NameOf(uint32_t local_rank) const {
  return rpc::WorkerName(first_rank_ + local_rank, local_rank);
}

Worker* NodeGeneration::Find(uint64_t generation, uint32_t local_rank) {
  if (!Alive() || generation != id_.number) return nullptr;
  const auto worker = workers_.find(local_rank);
  return worker == workers_.end() ? nullptr : &worker->second;
}

Worker* NodeGeneration::FindRunning(uint64_t generation, uint32_t local_rank) {
  return running() ? Find(generation, local_rank) : nullptr;
}

void NodeGeneration::OnRuns(const WorkerRuns& event, MonoTime now, bool report) {
  Worker* worker = Find(event.generation, event.local_rank);
  if (worker == nullptr) return;
  worker->Apply(WorkerEvent::kRuns);
  worker->pid = event.pid;
  worker->warm = event.warm;
  worker->why_plain = event.why_plain;
  worker->imports = event.warm || !event.why_plain.empty();
  worker->wrote_at = now;
  if (report) out_.Send(StartedMessage(event.local_rank, *worker), id_);
}

void NodeGeneration::OnImported(const ProgramImported& event, MonoTime now, bool report) {
  if (!running() || event.generation != id_.number) return;
  imports_ = event.imports;
  // One worker's imports took this long; from now on all workers are expected to write.
  for (auto& [local_rank, worker] : workers_) {
    if (event.imports.worker_us() == 0 || !std::exchange(worker.imports, false)) continue;
    worker.wrote_at = std::max(worker.wrote_at, now);
  }
  if (report) out_.Send(ImportsMessage(*imports_), id_);
}

bool NodeGeneration::OnDied(const WorkerDied& event, MonoTime now, const std::string& node,
                            const std::string& fenced_because) {
  if (HasProcesses() && event.generation == id_.number && kept_.count(event.local_rank) != 0) {
    OnKeptDied(event.local_rank, now);
  }
  Worker* worker = Find(event.generation, event.local_rank);
  if (worker == nullptr || worker->exited()) return false;
  v1::WorkerExited& exited = worker->exit;
  exited.set_local_rank(event.local_rank);
  *exited.mutable_exit() = event.exit;
  exited.set_cause(ClassifyExit(event.exit, phase_ == Phase::kStopping));
  if (event.evidence) *exited.mutable_evidence() = *event.evidence;
  exited.set_late(worker->state == WorkerState::kLate);
  if (fenced_) {
    exited.set_cause(v1::NODE_LOST);
    exited.mutable_exit()->set_ended_with(fenced_because);
  }
  const bool grace_is_over =
      phase_ == Phase::kStopping && grace_ > absl::ZeroDuration() && now >= grace_over_;
  if (grace_is_over && event.exit.signal() == SIGKILL && !worker->unkillable) {
    out_.Add(
        Say{absl::StrCat(NameOf(event.local_rank), " had not ended ", absl::FormatDuration(grace_),
                         " after SIGTERM and was killed (timeouts.stop_grace)")});
  }
  if (!failure_ && running() && !fenced_ && exited.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) {
    failure_ = FailureOf(exited, first_rank_, node, id_.number);
  }
  worker->Apply(WorkerEvent::kExits);
  return true;
}

// The processes that the kept worker left behind are stopped too. Its death is not a failure if
// everything else has ended: the next assignment starts a new worker.
void NodeGeneration::OnKeptDied(uint32_t local_rank, MonoTime now) {
  const bool others_may_run = phase_ == Phase::kStopping && grace_over_ != MonoTime::Never();
  const absl::Duration grace =
      others_may_run ? std::max(grace_over_ - now, absl::ZeroDuration()) : absl::ZeroDuration();
  kept_.erase(local_rank);
  if (phase_ == Phase::kHolding && kept_.empty()) phase_ = Phase::kIdle;
  if (!waits_for_probe_) SendStop(now, grace);
}

bool NodeGeneration::OnUnkillable(const WorkerUnkillable& event, MonoTime now) {
  const uint32_t local_rank = event.remains.local_rank();
  // The worker has been sent SIGKILL, so it must not be kept for the next assignment.
  const bool waits =
      HasProcesses() && event.generation == id_.number && kept_.count(local_rank) != 0;
  Worker* worker = waits ? &workers_.at(local_rank) : Find(event.generation, local_rank);
  if (worker == nullptr) return false;
  const bool known = worker->unkillable.has_value() &&
                     worker->unkillable->SerializeAsString() == event.remains.SerializeAsString();
  if (known) return false;
  worker->Apply(WorkerEvent::kUnkillable);
  worker->unkillable = event.remains;
  if (!kept_.empty()) Stop(now, absl::ZeroDuration(), {}, reason_, false);
  return true;
}

bool NodeGeneration::OnAllGone(const AllGone& event) {
  if (!Alive() || event.generation != id_.number || event.kept != kept_) return false;
  others_gone_ = true;
  return true;
}

bool NodeGeneration::EndIfStopped() {
  const bool all_wait = std::all_of(kept_.begin(), kept_.end(), [this](uint32_t local_rank) {
    return workers_.at(local_rank).waits();
  });
  if (phase_ != Phase::kStopping || !others_gone_ || !all_wait) return false;
  phase_ = kept_.empty() ? Phase::kIdle : Phase::kHolding;
  return true;
}

bool NodeGeneration::IsHealthy() const {
  return running() && !failure_ &&
         std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) {
           return !entry.second.exited() && !entry.second.waits();
         });
}

void NodeGeneration::OnMayRejoin(const WorkerMayRejoin& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker == nullptr) return;
  worker->Apply(event.may ? WorkerEvent::kCanRejoin : WorkerEvent::kCannotRejoin);
}

bool NodeGeneration::OnWaits(const WorkerWaits& event, MonoTime now) {
  Worker* worker = Find(event.generation, event.local_rank);
  if (worker == nullptr || worker->waits()) return false;
  worker->Apply(WorkerEvent::kWaits);
  worker->waits_since = now;
  worker->waits_because = event.reason;
  return true;
}

bool NodeGeneration::OnProgress(const WorkerProgress& event) {
  Worker* worker = FindRunning(event.generation, event.progress.local_rank());
  if (worker == nullptr) return false;
  if (!worker->progressed_at || !worker->progress ||
      worker->progress->step() != event.progress.step()) {
    worker->Progressed(event.at);
  }
  worker->progress = event.progress;
  return true;
}

void NodeGeneration::OnAlive(const WorkerAlive& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker != nullptr) worker->Progressed(event.at);
}

void NodeGeneration::OnWrote(const WorkerWrote& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker != nullptr) worker->wrote_at = std::max(worker->wrote_at, event.at);
}

void NodeGeneration::ReportGivenUp(MonoTime now) {
  for (auto& [local_rank, worker] : workers_) {
    if (worker.state != WorkerState::kWaits || now < worker.waits_since + kGiveUpAfter) continue;
    worker.Apply(WorkerEvent::kServerTold);
    v1::NodeMessage message;
    message.mutable_worker_gave_up()->set_local_rank(local_rank);
    message.mutable_worker_gave_up()->set_reason(worker.waits_because);
    out_.Send(std::move(message), id_);
  }
}

// Kept workers that have not given the generation up in time are stopped like the others.
void NodeGeneration::StopLateWorkers(MonoTime now, absl::Duration grace) {
  CADRE_CHECK(phase_ == Phase::kStopping && !waits_for_probe_,
              "only workers that have the stop order can be late");
  for (auto it = kept_.begin(); it != kept_.end();) {
    Worker& worker = workers_.at(*it);
    if (worker.waits()) {
      ++it;
      continue;
    }
    worker.Apply(WorkerEvent::kTooLate);
    out_.Add(Say{absl::StrCat("rank ", first_rank_ + *it, " (local rank ", *it, ", pid ",
                              worker.pid, ") was told to leave generation ", id_.number,
                              " and has not done so after ", absl::FormatDuration(grace),
                              ": it is killed and replaced")});
    it = kept_.erase(it);
  }
  SendStop(now, absl::ZeroDuration());
  grace_over_ = MonoTime::Never();
}

// The deadline by which kept workers have to give the generation up.
MonoTime NodeGeneration::RejoinDeadline() const {
  return phase_ == Phase::kStopping && !kept_.empty() ? grace_over_ : MonoTime::Never();
}

void NodeGeneration::OnDeadlines(MonoTime now, bool report, absl::Duration grace) {
  if (running() && report) ReportGivenUp(now);
  if (RejoinDeadline() <= now) StopLateWorkers(now, grace);
}

MonoTime NodeGeneration::Deadline(bool report) const {
  MonoTime next = RejoinDeadline();
  if (!running() || !report) return next;
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.state == WorkerState::kWaits) {
      next = std::min(next, worker.waits_since + kGiveUpAfter);
    }
  }
  return next;
}

}  // namespace cadre::agent
