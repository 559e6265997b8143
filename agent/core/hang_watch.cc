#include "agent/core/hang_watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/duration.h"

namespace cadre::agent {
namespace {

// Limits on the workers in a report of a hang, and on those whose last lines it includes: it has to
// fit into one message.
constexpr size_t kMaxRanksInEvidence = 512;
constexpr size_t kMaxQuotedRanks = 64;
// Limit on the recorded collective calls of all workers.
constexpr size_t kMaxCallsBytes = 512 << 10;

// A program that imports its packages writes nothing; one that takes longer than this counts as
// hanging.
constexpr absl::Duration kLongestImports = absl::Minutes(10);

// The last sign of life that counts, unset if none does; how long the next one may take, zero for
// no limit; and whether that sign was output.
struct Quiet {
  std::optional<MonoTime> since;
  absl::Duration limit;
  bool by_output = false;
};

Quiet QuietSince(const Worker& worker, const v1::Timeouts& timeouts) {
  const absl::Duration progress = FromProto(timeouts.progress());
  const absl::Duration silence = FromProto(timeouts.silence());
  const bool shows = worker.progressed_at.has_value();
  // A worker that shows progress need not write. Without a progress limit, output counts as well.
  if (shows && progress > absl::ZeroDuration()) return {worker.progressed_at, progress, false};
  if (silence > absl::ZeroDuration() && (!shows || *worker.progressed_at < worker.wrote_at)) {
    return {worker.wrote_at, worker.imports ? std::max(silence, kLongestImports) : silence, true};
  }
  return {worker.progressed_at, silence, false};
}

// Adds what the agent knows of the worker.
void Complete(const Worker& worker, const v1::JobSpec& spec, MonoTime now, v1::RankEvidence* rank) {
  rank->set_pid(worker.pid);
  rank->set_absent(spec.restart().in_place() && !worker.rejoined &&
                   worker.state != WorkerState::kCanRejoin && !worker.progressed_at);
  rank->set_overdue(HangsAt(worker, spec.timeouts()) <= now);
  if (rank->phase() == v1::RANK_PHASE_UNSPECIFIED && worker.progress) {
    rank->set_step(worker.progress->step());
  }
  rank->set_silent_seconds(-1);
  const Quiet quiet = QuietSince(worker, spec.timeouts());
  if (!quiet.since) return;
  rank->set_silent_seconds(absl::ToDoubleSeconds(now - *quiet.since));
  absl::StrAppend(rank->mutable_summary(), rank->summary().empty() ? "" : "; ",
                  quiet.by_output ? "no output for " : "no progress for ",
                  absl::StrFormat("%.1f s", rank->silent_seconds()));
}

}  // namespace

MonoTime HangsAt(const Worker& worker, const v1::Timeouts& timeouts) {
  if (worker.exited() || worker.waits() || worker.pid == 0) return MonoTime::Never();
  const Quiet quiet = QuietSince(worker, timeouts);
  if (!quiet.since || quiet.limit <= absl::ZeroDuration()) return MonoTime::Never();
  return *quiet.since + quiet.limit;
}

MonoTime FirstHang(const Workers& workers, const v1::Timeouts& timeouts) {
  MonoTime first = MonoTime::Never();
  for (const auto& [local_rank, worker] : workers) {
    first = std::min(first, HangsAt(worker, timeouts));
  }
  return first;
}

std::vector<uint32_t> Overdue(const Workers& workers, const v1::Timeouts& timeouts, MonoTime now) {
  std::vector<uint32_t> overdue;
  for (const auto& [local_rank, worker] : workers) {
    if (HangsAt(worker, timeouts) <= now) overdue.push_back(local_rank);
  }
  return overdue;
}

MonoTime FirstStandstill(const Workers& workers) {
  MonoTime first = MonoTime::Never();
  for (const auto& [local_rank, worker] : workers) {
    if (worker.exited() || worker.waits() || worker.pid == 0) continue;
    if (!worker.progressed_at || worker.usual_interval == absl::ZeroDuration()) continue;
    const absl::Duration limit = std::max(kUsualTimes * worker.usual_interval, kMinStandstill);
    first = std::min(first, *worker.progressed_at + limit);
  }
  return first;
}

v1::NodeEvidence EvidenceOf(std::vector<v1::RankEvidence> findings, const Workers& workers,
                            const v1::JobSpec& spec, MonoTime now) {
  if (findings.empty()) {
    // The probe was too slow; the server must still learn which workers hang.
    for (const auto& [local_rank, worker] : workers) {
      findings.emplace_back().set_local_rank(static_cast<int32_t>(local_rank));
    }
  }
  std::vector<v1::RankEvidence> ranks;
  for (v1::RankEvidence& rank : findings) {
    const auto found = workers.find(static_cast<uint32_t>(rank.local_rank()));
    // A worker that waits for the next generation blocks no other worker in this one.
    if (found == workers.end() || found->second.exited() || found->second.waits()) continue;
    Complete(found->second, spec, now, &rank);
    ranks.push_back(std::move(rank));
  }
  std::stable_partition(ranks.begin(), ranks.end(),
                        [](const auto& rank) { return rank.overdue(); });
  if (ranks.size() > kMaxRanksInEvidence) ranks.resize(kMaxRanksInEvidence);
  for (size_t i = kMaxQuotedRanks; i < ranks.size(); ++i) ranks[i].clear_last_lines();
  size_t calls_bytes = 0;
  for (v1::RankEvidence& rank : ranks) {
    for (const v1::ProcessGroupCalls& group : rank.calls()) calls_bytes += group.ByteSizeLong();
    if (calls_bytes > kMaxCallsBytes) rank.clear_calls();
  }
  v1::NodeEvidence evidence;
  evidence.set_hang(!ranks.empty() && ranks.front().overdue());
  for (v1::RankEvidence& rank : ranks) *evidence.add_ranks() = std::move(rank);
  return evidence;
}

void HangWatch::OnStandstillProbe(MonoTime first, MonoTime now) {
  for_standstill_ = true;
  probed_standstill_ = first;
  next_probe_at_ = now + kProbeAgain;
}

void HangWatch::Begin(MonoTime now, bool briefly) {
  CADRE_CHECK(!probing(), "a probe begins while another is under way");
  findings_.clear();
  briefly_ = briefly;
  findings_by_ = now + kEvidenceLimit;
  over_by_ = now + kStacksLimit;
}

bool HangWatch::OnFindings(std::vector<v1::RankEvidence> findings, MonoTime now) {
  if (findings_by_ == MonoTime::Never()) return false;
  findings_ = std::move(findings);
  // If the findings are late the agent itself was suspended, and may not have read yet what its
  // workers reported.
  return now <= findings_by_;
}

bool HangWatch::FindingsAreDue(MonoTime now) {
  if (now < findings_by_) return false;
  if (now - findings_by_ <= kReadTime) return true;
  findings_by_ = now + kReadTime;
  return false;
}

std::vector<v1::RankEvidence> HangWatch::TakeFindings() {
  CADRE_CHECK(findings_by_ != MonoTime::Never(), "no findings are due");
  findings_by_ = MonoTime::Never();
  return std::exchange(findings_, {});
}

bool HangWatch::ShouldReport(bool stands_still, v1::NodeEvidence* evidence) {
  const bool asked = std::exchange(inspected_, false);
  evidence->set_stall(std::exchange(for_standstill_, false) && stands_still && !evidence->hang());
  if (evidence->hang()) hang_ = *evidence;
  // Otherwise the worker made progress during the probe, and nothing is reported.
  return evidence->hang() || evidence->stall() || asked;
}

bool HangWatch::End() {
  if (!probing()) return false;
  over_by_ = MonoTime::Never();
  return true;
}

}  // namespace cadre::agent
