// How far this node's workers are, and what is done about one that does not get on.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/impl.h"
#include "base/duration.h"

namespace cadre {
namespace {

MonoTime After(MonoTime since, absl::Duration limit) {
  return limit <= absl::ZeroDuration() ? MonoTime::Never() : since + limit;
}

}  // namespace

AgentCore::Impl::Worker* AgentCore::Impl::FindRunning(uint64_t generation, uint32_t local_rank) {
  if (phase != Phase::kRunning || generation != started.number) return nullptr;
  const auto worker = workers.find(local_rank);
  return worker == workers.end() ? nullptr : &worker->second;
}

void AgentCore::Impl::OnProgress(const WorkerProgress& event) {
  Worker* worker = FindRunning(event.generation, event.progress.local_rank());
  if (worker == nullptr) return;
  if (!worker->progressed_at || worker->progress->step() != event.progress.step()) {
    worker->progressed_at = std::max(worker->progressed_at.value_or(MonoTime()), event.at);
  }
  worker->progress = event.progress;
  progress_news = true;
}

void AgentCore::Impl::OnAlive(const WorkerAlive& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker == nullptr) return;
  worker->progressed_at = std::max(worker->progressed_at.value_or(MonoTime()), event.at);
}

void AgentCore::Impl::OnWrote(const WorkerWrote& event) {
  Worker* worker = FindRunning(event.generation, event.local_rank);
  if (worker != nullptr) worker->wrote_at = std::max(worker->wrote_at, event.at);
}

AgentCore::Impl::Quiet AgentCore::Impl::QuietSince(const Worker& worker) const {
  const absl::Duration progress = FromProto(spec.timeouts().progress());
  const absl::Duration silence = FromProto(spec.timeouts().silence());
  const bool shows = worker.progressed_at.has_value();
  // Whoever shows progress need not write. Without a limit for that, both are signs of life.
  if (shows && progress > absl::ZeroDuration()) return {worker.progressed_at, progress, false};
  if (silence > absl::ZeroDuration() && (!shows || *worker.progressed_at < worker.wrote_at)) {
    return {worker.wrote_at, silence, true};
  }
  return {worker.progressed_at, silence, false};
}

MonoTime AgentCore::Impl::HangsAt(const Worker& worker) const {
  if (worker.exited || worker.pid == 0 || worker.waits_since) return MonoTime::Never();
  const Quiet quiet = QuietSince(worker);
  return quiet.since ? After(*quiet.since, quiet.limit) : MonoTime::Never();
}

void AgentCore::Impl::LookForHangs() {
  if (hang || looking || findings_by != MonoTime::Never()) return;
  for (const auto& [local_rank, worker] : workers) {
    if (HangsAt(worker) <= now) return AskForEvidence();
  }
}

void AgentCore::Impl::AskForEvidence() {
  CollectEvidence command{started.number, {}};
  for (const auto& [local_rank, worker] : workers) {
    if (HangsAt(worker) <= now) command.overdue.push_back(local_rank);
  }
  looking = true;
  findings.clear();
  findings_by = now + kEvidenceLimit;
  looking_by = now + kStacksLimit;
  commands.push_back(std::move(command));
}

void AgentCore::Impl::OnInspect(const GenerationId& inspected_one) {
  if (phase != Phase::kRunning || inspected_one != started || leaving) return;
  // What was found of a hang here is on its way already.
  if (hang) return;
  inspected = true;
  if (!looking) AskForEvidence();
}

void AgentCore::Impl::OnEvidenceFound(const EvidenceFound& event) {
  if (event.generation != started.number || findings_by == MonoTime::Never()) return;
  findings = event.ranks;
  // Later than that the agent stood still, and may not have read yet what its workers reported.
  if (now <= findings_by) ReportFindings();
}

void AgentCore::Impl::SendEvidence(std::vector<v1::RankEvidence> ranks) {
  v1::NodeEvidence evidence;
  std::vector<v1::RankEvidence> kept;
  for (v1::RankEvidence& rank : ranks) {
    const auto found = workers.find(static_cast<uint32_t>(rank.local_rank()));
    // Who waits for the next generation holds up nobody in this one.
    if (found == workers.end() || found->second.exited || found->second.waits_since) continue;
    const Worker& worker = found->second;
    rank.set_pid(worker.pid);
    rank.set_absent(spec.restart().in_place() && !worker.rejoined && !worker.may_rejoin &&
                    !worker.progressed_at);
    rank.set_overdue(HangsAt(worker) <= now);
    if (rank.overdue()) evidence.set_hang(true);
    if (rank.phase() == v1::RANK_PHASE_UNSPECIFIED && worker.progress) {
      rank.set_step(worker.progress->step());
    }
    rank.set_silent_seconds(-1);
    if (const Quiet quiet = QuietSince(worker); quiet.since) {
      rank.set_silent_seconds(absl::ToDoubleSeconds(now - *quiet.since));
      absl::StrAppend(rank.mutable_summary(), rank.summary().empty() ? "" : "; ",
                      quiet.by_output ? "no output for " : "no progress for ",
                      absl::StrFormat("%.1f s", rank.silent_seconds()));
    }
    kept.push_back(std::move(rank));
  }
  std::stable_partition(kept.begin(), kept.end(), [](const auto& rank) { return rank.overdue(); });
  if (kept.size() > kMaxRanksInEvidence) kept.resize(kMaxRanksInEvidence);
  for (size_t i = kMaxQuotedRanks; i < kept.size(); ++i) kept[i].clear_last_lines();
  for (v1::RankEvidence& rank : kept) *evidence.add_ranks() = std::move(rank);
  const bool asked = std::exchange(inspected, false);
  // It got on while it was looked at.
  if (!evidence.hang() && !asked) return;
  if (evidence.hang()) hang = evidence;
  v1::NodeMessage message;
  *message.mutable_evidence() = std::move(evidence);
  if (welcomed) Up(std::move(message), started);
}

void AgentCore::Impl::ReportFindings() {
  findings_by = MonoTime::Never();
  std::vector<v1::RankEvidence> ranks = std::exchange(findings, {});
  if (phase != Phase::kRunning) return;
  if (ranks.empty()) {
    // The look takes too long; the server must still hear who hangs.
    for (const auto& [local_rank, worker] : workers) {
      ranks.emplace_back().set_local_rank(static_cast<int32_t>(local_rank));
    }
  }
  SendEvidence(std::move(ranks));
}

void AgentCore::Impl::OnEvidenceDone(const EvidenceDone& event) {
  if (!looking || event.generation != started.number) return;
  looking = false;
  looking_by = MonoTime::Never();
  if (held_stop) SendStop(*std::exchange(held_stop, {}));
}

void AgentCore::Impl::SendProgress() {
  if (!welcomed || phase != Phase::kRunning || !progress_news || now < progress_due) return;
  v1::NodeMessage message;
  v1::NodeProgress& sum = *message.mutable_progress();
  double loss = 0;
  int losses = 0;
  for (const auto& [local_rank, worker] : workers) {
    if (!worker.progress) continue;
    const v1::Progress& one = *worker.progress;
    if (sum.workers() == 0 || one.step() < sum.min_step()) {
      sum.set_min_step(one.step());
      sum.set_slowest_local_rank(local_rank);
    }
    sum.set_max_step(std::max(sum.max_step(), one.step()));
    sum.set_samples_per_second(sum.samples_per_second() + one.samples_per_second());
    loss += one.loss();
    losses += one.loss() != 0;
    sum.set_workers(sum.workers() + 1);
  }
  if (losses > 0) sum.set_loss(loss / losses);
  Up(std::move(message), started);
  progress_news = false;
  progress_due = now + kProgressInterval;
}

void AgentCore::Impl::OnProgressDeadlines() {
  if (findings_by <= now) {
    if (now - findings_by > kReadTime) {
      findings_by = now + kReadTime;
    } else {
      ReportFindings();
    }
  }
  if (looking && looking_by <= now) OnEvidenceDone(EvidenceDone{started.number});
  if (phase != Phase::kRunning || !welcomed) return;
  SendProgress();
  LookForHangs();
}

MonoTime AgentCore::Impl::ProgressDeadline() const {
  MonoTime next = std::min(findings_by, looking_by);
  if (phase != Phase::kRunning || !welcomed) return next;
  if (progress_news) next = std::min(next, progress_due);
  if (hang || looking || findings_by != MonoTime::Never()) return next;
  for (const auto& [local_rank, worker] : workers) next = std::min(next, HangsAt(worker));
  return next;
}

}  // namespace cadre
