// Workers that are not stopped with their generation: they give it up and wait for the next one.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/impl.h"

namespace cadre {

void AgentCore::Impl::OnWorkerMayRejoin(const WorkerMayRejoin& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker != nullptr && !worker->waits_since) worker->may_rejoin = event.may;
}

void AgentCore::Impl::OnWorkerWaits(const WorkerWaits& event) {
  if (!Alive() || event.generation != started.number) return;
  const auto worker = workers.find(event.local_rank);
  if (worker == workers.end() || worker->second.waits_since) return;
  worker->second.waits_since = now;
  worker->second.may_rejoin = true;
  worker->second.waits_because = event.reason;
  if (phase == Phase::kStopping) EndGenerationIfClear();
}

std::set<uint32_t> AgentCore::Impl::WorkersToKeep(const v1::Stop& stop) const {
  std::set<uint32_t> keep;
  if (!stop.rejoin() || phase != Phase::kRunning) return keep;
  for (const auto& [local_rank, worker] : workers) {
    const bool replaced = std::count(stop.replace().begin(), stop.replace().end(), local_rank) != 0;
    if (worker.may_rejoin && !worker.exited && !replaced) keep.insert(local_rank);
  }
  return keep;
}

void AgentCore::Impl::StopButKeep(absl::Duration grace, std::set<uint32_t> keep,
                                  const std::string& reason) {
  if (!HasProcesses()) return;
  phase = Phase::kStopping;
  kept = std::move(keep);
  keep_by = kept.empty() ? MonoTime::Never() : now + grace;
  stop_reason = reason;
  // Known of an earlier one at best, also where this one waits for a look.
  others_gone = false;
  if (looking && grace > absl::ZeroDuration()) {
    held_stop = grace;
    return;
  }
  held_stop.reset();
  SendStop(grace);
}

void AgentCore::Impl::SendStop(absl::Duration grace) {
  others_gone = false;
  commands.push_back(StopWorkers{started.number, grace, kept, stop_reason});
}

// What it left behind is stopped too. One that dies while everything else is over is nobody's
// failure: the next assignment starts another one.
void AgentCore::Impl::OnKeptWorkerDied(uint32_t local_rank) {
  const bool others_may_run = phase == Phase::kStopping && keep_by != MonoTime::Never();
  const absl::Duration grace =
      others_may_run ? std::max(keep_by - now, absl::ZeroDuration()) : absl::ZeroDuration();
  kept.erase(local_rank);
  if (kept.empty()) keep_by = MonoTime::Never();
  if (phase == Phase::kHolding && kept.empty()) phase = Phase::kIdle;
  if (!held_stop) SendStop(grace);
}

void AgentCore::Impl::EndGenerationIfClear() {
  const bool all_wait = std::all_of(kept.begin(), kept.end(), [this](uint32_t local_rank) {
    return workers[local_rank].waits_since.has_value();
  });
  if (!others_gone || !all_wait) return;
  keep_by = MonoTime::Never();
  phase = kept.empty() ? Phase::kIdle : Phase::kHolding;
  if (leaving) return Finish();
  if (stop_ordered && welcomed) SendStopped(*stop_ordered);
  if (!next_assign) return;
  const auto [assigned, assign] = *std::exchange(next_assign, std::nullopt);
  Start(assigned, assign);
}

void AgentCore::Impl::ReportGivenUp() {
  for (auto& [local_rank, worker] : workers) {
    if (!worker.waits_since || worker.gave_up || worker.exited) continue;
    if (now < *worker.waits_since + kGiveUpAfter) continue;
    worker.gave_up = true;
    v1::NodeMessage message;
    message.mutable_worker_gave_up()->set_local_rank(local_rank);
    message.mutable_worker_gave_up()->set_reason(worker.waits_because);
    Up(std::move(message), started);
  }
}

void AgentCore::Impl::OnRejoinDeadlines() {
  if (phase == Phase::kRunning && welcomed) ReportGivenUp();
  if (phase != Phase::kStopping || now < keep_by) return;
  // Who has not come by now is stopped like any other.
  for (auto it = kept.begin(); it != kept.end();) {
    Worker& worker = workers[*it];
    if (worker.waits_since) {
      ++it;
      continue;
    }
    worker.late = true;
    commands.push_back(
        Say{absl::StrCat("rank ", first_rank + *it, " (local rank ", *it, ", pid ", worker.pid,
                         ") did not give generation ", started.number, " up within ",
                         absl::FormatDuration(StopGrace()), ": it is killed and replaced")});
    it = kept.erase(it);
  }
  keep_by = MonoTime::Never();
  SendStop(absl::ZeroDuration());
}

MonoTime AgentCore::Impl::RejoinDeadline() const {
  MonoTime next = phase == Phase::kStopping ? keep_by : MonoTime::Never();
  if (phase != Phase::kRunning || !welcomed) return next;
  for (const auto& [local_rank, worker] : workers) {
    if (!worker.waits_since || worker.gave_up || worker.exited) continue;
    next = std::min(next, *worker.waits_since + kGiveUpAfter);
  }
  return next;
}

}  // namespace cadre
