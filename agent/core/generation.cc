#include "agent/core/generation.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/exits.h"
#include "base/check.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// A worker that gave the generation up while nobody has ended it: how long the server may take to
// hear of the cause before it is told of this.
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

void Generation::Adopt(const GenerationId& id, uint32_t first_rank, uint32_t workers) {
  phase_ = Phase::kRunning;
  id_ = id;
  first_rank_ = first_rank;
  for (uint32_t i = 0; i < workers; ++i) workers_.try_emplace(i);
}

void Generation::Start(MonoTime now, const GenerationId& id, const v1::Assign& assign, bool tell) {
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
    if (tell) out_.Up(StartedMessage(local_rank, workers_.at(local_rank)), id_);
  }
}

void Generation::Stop(MonoTime now, absl::Duration grace, std::set<uint32_t> keep,
                      const std::string& reason, bool wait_for_look) {
  if (!HasProcesses()) return;
  phase_ = Phase::kStopping;
  kept_ = std::move(keep);
  reason_ = reason;
  grace_ = grace;
  grace_over_ = MonoTime::Never();
  // Known of an earlier one at best, also where this one waits for a look.
  others_gone_ = false;
  waits_for_look_ = wait_for_look && grace > absl::ZeroDuration();
  if (!waits_for_look_) SendStop(now, grace);
}

void Generation::LookEnded(MonoTime now) {
  if (std::exchange(waits_for_look_, false)) SendStop(now, grace_);
}

// Workers hear of it now, so their time begins now.
void Generation::SendStop(MonoTime now, absl::Duration grace) {
  others_gone_ = false;
  grace_over_ = now + grace;
  out_.Add(StopWorkers{id_.number, grace, kept_, reason_});
}

void Generation::SpeakAgain(bool known) {
  if (known && Alive() && imports_.has_value()) out_.Up(ImportsMessage(*imports_), id_);
  for (auto& [local_rank, worker] : workers_) {
    if (known) {
      worker.Take(WorkerEvent::kServerIsBack);
      if (worker.pid != 0) out_.Up(StartedMessage(local_rank, worker), id_);
      if (worker.exited()) out_.Up(ExitedMessage(worker), id_);
    }
    if (worker.remains && Alive()) out_.Up(RemainsMessage(worker), id_);
  }
}

std::string Generation::NameOf(uint32_t local_rank) const {
  return rpc::WorkerName(first_rank_ + local_rank, local_rank);
}

Worker* Generation::Find(uint64_t generation, uint32_t local_rank) {
  if (!Alive() || generation != id_.number) return nullptr;
  const auto worker = workers_.find(local_rank);
  return worker == workers_.end() ? nullptr : &worker->second;
}

Worker* Generation::FindRunning(uint64_t generation, uint32_t local_rank) {
  return running() ? Find(generation, local_rank) : nullptr;
}

void Generation::OnRuns(const WorkerRuns& event, MonoTime now, bool tell) {
  Worker* worker = Find(event.generation, event.local_rank);
  if (worker == nullptr) return;
  worker->Take(WorkerEvent::kRuns);
  worker->pid = event.pid;
  worker->warm = event.warm;
  worker->why_plain = event.why_plain;
  worker->imports = event.warm || !event.why_plain.empty();
  worker->wrote_at = now;
  if (tell) out_.Up(StartedMessage(event.local_rank, *worker), id_);
}

void Generation::OnImported(const ProgramImported& event, MonoTime now, bool tell) {
  if (!running() || event.generation != id_.number) return;
  imports_ = event.imports;
  // Those of one of them have taken so long; from now on they are expected to write.
  for (auto& [local_rank, worker] : workers_) {
    if (event.imports.worker_us() == 0 || !std::exchange(worker.imports, false)) continue;
    worker.wrote_at = std::max(worker.wrote_at, now);
  }
  if (tell) out_.Up(ImportsMessage(*imports_), id_);
}

bool Generation::OnDied(const WorkerDied& event, MonoTime now, const std::string& node,
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
  if (grace_is_over && event.exit.signal() == SIGKILL && !worker->remains) {
    out_.Add(
        Say{absl::StrCat(NameOf(event.local_rank), " had not ended ", absl::FormatDuration(grace_),
                         " after SIGTERM and was killed (--stop-grace)")});
  }
  if (!failure_ && running() && !fenced_ && exited.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) {
    failure_ = FailureOf(exited, first_rank_, node, id_.number);
  }
  worker->Take(WorkerEvent::kExits);
  return true;
}

// What it left behind is stopped too. One that dies while everything else is over is nobody's
// failure: the next assignment starts another one.
void Generation::OnKeptDied(uint32_t local_rank, MonoTime now) {
  const bool others_may_run = phase_ == Phase::kStopping && grace_over_ != MonoTime::Never();
  const absl::Duration grace =
      others_may_run ? std::max(grace_over_ - now, absl::ZeroDuration()) : absl::ZeroDuration();
  kept_.erase(local_rank);
  if (phase_ == Phase::kHolding && kept_.empty()) phase_ = Phase::kIdle;
  if (!waits_for_look_) SendStop(now, grace);
}

bool Generation::OnUnkillable(const WorkerUnkillable& event, MonoTime now) {
  const uint32_t local_rank = event.remains.local_rank();
  // One that waits in its process for the next assignment gets none: it has been sent SIGKILL.
  const bool waits =
      HasProcesses() && event.generation == id_.number && kept_.count(local_rank) != 0;
  Worker* worker = waits ? &workers_.at(local_rank) : Find(event.generation, local_rank);
  if (worker == nullptr) return false;
  const bool known = worker->remains.has_value() &&
                     worker->remains->SerializeAsString() == event.remains.SerializeAsString();
  if (known) return false;
  worker->Take(WorkerEvent::kRemains);
  worker->remains = event.remains;
  if (!kept_.empty()) Stop(now, absl::ZeroDuration(), {}, reason_, false);
  return true;
}

bool Generation::OnAllGone(const AllGone& event) {
  if (!Alive() || event.generation != id_.number || event.kept != kept_) return false;
  others_gone_ = true;
  return true;
}

bool Generation::EndIfClear() {
  const bool all_wait = std::all_of(kept_.begin(), kept_.end(), [this](uint32_t local_rank) {
    return workers_.at(local_rank).waits();
  });
  if (phase_ != Phase::kStopping || !others_gone_ || !all_wait) return false;
  phase_ = kept_.empty() ? Phase::kIdle : Phase::kHolding;
  return true;
}

bool Generation::GoesOn() const {
  return running() && !failure_ &&
         std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) {
           return !entry.second.exited() && !entry.second.waits();
         });
}

void Generation::OnMayRejoin(const WorkerMayRejoin& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker == nullptr) return;
  worker->Take(event.may ? WorkerEvent::kCanRejoin : WorkerEvent::kCannotRejoin);
}

bool Generation::OnWaits(const WorkerWaits& event, MonoTime now) {
  Worker* worker = Find(event.generation, event.local_rank);
  if (worker == nullptr || worker->waits()) return false;
  worker->Take(WorkerEvent::kWaits);
  worker->waits_since = now;
  worker->waits_because = event.reason;
  return true;
}

bool Generation::OnProgress(const WorkerProgress& event) {
  Worker* worker = FindRunning(event.generation, event.progress.local_rank());
  if (worker == nullptr) return false;
  if (!worker->progressed_at || !worker->progress ||
      worker->progress->step() != event.progress.step()) {
    worker->Progressed(event.at);
  }
  worker->progress = event.progress;
  return true;
}

void Generation::OnAlive(const WorkerAlive& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker != nullptr) worker->Progressed(event.at);
}

void Generation::OnWrote(const WorkerWrote& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker != nullptr) worker->wrote_at = std::max(worker->wrote_at, event.at);
}

void Generation::ReportGivenUp(MonoTime now) {
  for (auto& [local_rank, worker] : workers_) {
    if (worker.state != WorkerState::kWaits || now < worker.waits_since + kGiveUpAfter) continue;
    worker.Take(WorkerEvent::kServerTold);
    v1::NodeMessage message;
    message.mutable_worker_gave_up()->set_local_rank(local_rank);
    message.mutable_worker_gave_up()->set_reason(worker.waits_because);
    out_.Up(std::move(message), id_);
  }
}

// Who has not come by now is stopped like any other.
void Generation::StopLate(MonoTime now, absl::Duration grace) {
  for (auto it = kept_.begin(); it != kept_.end();) {
    Worker& worker = workers_.at(*it);
    if (worker.waits()) {
      ++it;
      continue;
    }
    worker.Take(WorkerEvent::kTooLate);
    out_.Add(Say{absl::StrCat("rank ", first_rank_ + *it, " (local rank ", *it, ", pid ",
                              worker.pid, ") did not give generation ", id_.number, " up within ",
                              absl::FormatDuration(grace), ": it is killed and replaced")});
    it = kept_.erase(it);
  }
  SendStop(now, absl::ZeroDuration());
  grace_over_ = MonoTime::Never();
}

// Who is kept has to give the generation up by then.
MonoTime Generation::KeepsUntil() const {
  return phase_ == Phase::kStopping && !kept_.empty() ? grace_over_ : MonoTime::Never();
}

void Generation::OnDeadlines(MonoTime now, bool tell, absl::Duration grace) {
  if (running() && tell) ReportGivenUp(now);
  if (KeepsUntil() <= now) StopLate(now, grace);
}

MonoTime Generation::Deadline(bool tell) const {
  MonoTime next = KeepsUntil();
  if (!running() || !tell) return next;
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.state == WorkerState::kWaits) {
      next = std::min(next, worker.waits_since + kGiveUpAfter);
    }
  }
  return next;
}

}  // namespace cadre::agent
