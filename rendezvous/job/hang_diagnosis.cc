// Hang diagnosis, and the methods of Job (job.h) that run it: one begins with the evidence of a
// node, or because workers lost a rank whose end has not been reported, and ends with a failure.
#include "rendezvous/job/hang_diagnosis.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/job/culprit.h"
#include "rendezvous/job/failure.h"
#include "rendezvous/job/job.h"
#include "rendezvous/state/state_limits.h"
#include "rpc/lost_peer.h"
#include "rpc/program_error.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

// The limit of ranks from all nodes together; later ones are ignored.
constexpr size_t kMaxDiagnosisRanks = 1 << 16;

// The shortest time between two probes because of a standstill.
constexpr absl::Duration kProbeInterval = absl::Seconds(4);

// Adds the ranks that run and are in no collective: one of them has left the others waiting.
v1::Failure WithWhereOthersAre(HangDiagnosis diagnosis) {
  CADRE_CHECK(diagnosis.otherwise.has_value(), "a lost rank has no victim");
  v1::Failure failure = *std::move(diagnosis.otherwise);
  std::sort(diagnosis.ranks.begin(), diagnosis.ranks.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
  for (v1::RankEvidence& rank : diagnosis.ranks) {
    const bool runs_elsewhere = !rank.state().empty() && rank.rank() != failure.rank() &&
                                !rank.python_where().empty() && rank.python() != v1::IN_COLLECTIVE;
    if (!runs_elsewhere) continue;
    if (failure.evidence_size() == state::kMaxEvidence) break;
    if (failure.evidence_size() == 0) {
      failure.set_message(
          Shortened(absl::StrCat(failure.message(), "; rank ", rank.rank(), " still ran, at ",
                                 rank.python_what(), " (", rank.python_where(), ")"),
                    state::kMaxMessageBytes));
    }
    rank.clear_last_lines();
    rank.clear_calls();
    *failure.add_evidence() = std::move(rank);
  }
  return failure;
}

// Adds evidence, the culprit's first and then the others' by rank, without what is never shown.
void AddEvidence(std::vector<v1::RankEvidence> ranks, size_t culprit, v1::Failure* failure) {
  std::swap(ranks[0], ranks[culprit]);
  std::sort(ranks.begin() + 1, ranks.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
  for (v1::RankEvidence& rank : ranks) {
    if (failure->evidence_size() == state::kMaxEvidence) break;
    rank.clear_last_lines();
    rank.clear_calls();
    *failure->add_evidence() = std::move(rank);
  }
}

std::string NameOf(const v1::RankEvidence& rank) {
  return rpc::WorkerName(rank.rank(), rank.local_rank(), rank.node());
}

// Returns "; likewise ranks 3, 5"; empty if no other rank is to blame.
std::string Others(const std::vector<v1::RankEvidence>& ranks, const Culprit& culprit) {
  if (culprit.others.empty()) return "";
  std::vector<std::string> first;
  for (const size_t other : culprit.others) {
    if (first.size() < kFirstFew) first.push_back(absl::StrCat(ranks[other].rank()));
  }
  return absl::StrCat("; likewise rank", culprit.others.size() == 1 ? " " : "s ",
                      FirstFew(first, culprit.others.size()));
}

v1::Failure Hang(const v1::RankEvidence& rank, uint64_t generation, const std::string& message) {
  v1::Failure failure = PlainFailure(v1::HANG, rank.node(), generation, message);
  failure.set_rank(rank.rank());
  failure.set_local_rank(rank.local_rank());
  failure.mutable_exit()->set_pid(rank.pid());
  failure.mutable_exit()->set_last_lines(Shortened(rank.last_lines(), kMaxLastLinesBytes));
  return failure;
}

bool WaitsForOthers(const v1::RankEvidence& rank) {
  const bool stopped = rank.state() == "T" || rank.state() == "t";
  return !stopped && (rank.python() == v1::IN_COLLECTIVE || rank.phase() == v1::WAITING);
}

// Returns the ranks that live and are in no call for which they need the victim. Ranks that waited
// `before` like the victim may be about to end like it, and are returned only if there are no
// others.
std::vector<v1::RankEvidence> ElsewhereNow(const std::vector<v1::RankEvidence>& ranks,
                                           const std::vector<v1::RankEvidence>& before,
                                           int32_t victim) {
  std::set<int32_t> waited;
  for (const v1::RankEvidence& rank : before) {
    if (WaitsForOthers(rank)) waited.insert(rank.rank());
  }
  std::vector<v1::RankEvidence> elsewhere, others;
  for (const v1::RankEvidence& rank : ranks) {
    if (rank.rank() == victim || rank.state().empty() || WaitsForOthers(rank)) continue;
    (waited.count(rank.rank()) == 0 ? elsewhere : others).push_back(rank);
  }
  return elsewhere.empty() ? others : elsewhere;
}

// Returns why the victims failed if no rank has failed for a reason of its own: a rank that
// succeeded too early, else the first victim whose wait timed out, since later ones found their
// peers gone.
v1::Failure CauseOfLoss(const state::Generation& generation,
                        const std::vector<v1::Failure>& victims) {
  std::optional<v1::Failure> early = EarlyEnd(generation, victims);
  if (early.has_value()) return *std::move(early);
  const auto timed_out =
      std::find_if(victims.begin(), victims.end(),
                   [](const v1::Failure& victim) { return rpc::PeerWaitTimedOut(victim.exit()); });
  return timed_out == victims.end() ? victims.front() : *timed_out;
}

}  // namespace

HangDiagnosis StartDiagnosis(const state::Generation& generation,
                             const NodeConnections& connections, const std::string& except,
                             MonoTime now, JobOutbox* out, bool briefly) {
  HangDiagnosis diagnosis;
  diagnosis.deadline = now + kDiagnosisTimeout;
  for (const saved::Member& member : generation.saved.members()) {
    if (member.lost() || member.node() == except || member.succeeded() == member.slots()) continue;
    if (!connections.StreamOf(member.node()).has_value()) continue;
    diagnosis.awaited.insert(member.node());
    v1::ServerMessage message = out->Message();
    message.mutable_inspect()->set_briefly(briefly);
    out->SendTo(member.node(), std::move(message));
  }
  return diagnosis;
}

void AddAnswer(const v1::NodeEvidence& evidence, const saved::Member& member,
               HangDiagnosis* diagnosis) {
  if (evidence.hang()) diagnosis->for_absent = diagnosis->for_lost = false;
  diagnosis->awaited.erase(member.node());
  if (!diagnosis->answered.insert(member.node()).second) return;
  for (const v1::RankEvidence& reported : evidence.ranks()) {
    if (diagnosis->ranks.size() >= kMaxDiagnosisRanks) break;
    if (reported.local_rank() < 0 || static_cast<uint32_t>(reported.local_rank()) >= member.slots())
      continue;
    diagnosis->ranks.push_back(CleanEvidence(reported, member));
  }
}

std::optional<v1::Failure> FailureFrom(HangDiagnosis diagnosis, uint64_t generation) {
  if (diagnosis.for_lost) return WithWhereOthersAre(std::move(diagnosis));
  std::optional<Culprit> found;
  if (diagnosis.for_absent) {
    found = WhoIsAbsent(diagnosis.ranks);
  } else if (!diagnosis.ranks.empty()) {  // else the report named no rank
    found = PickCulprit(diagnosis.ranks);
  }
  if (!found.has_value()) return diagnosis.otherwise;
  const Culprit& culprit = *found;
  const v1::RankEvidence& evidence = diagnosis.ranks[culprit.index];
  const std::string silence = evidence.silent_seconds() < 0
                                  ? ""
                                  : absl::StrFormat(" for %.1f s", evidence.silent_seconds());
  v1::Failure failure = Hang(
      evidence, generation,
      absl::StrCat(NameOf(evidence), " made no progress", silence, " in generation ", generation,
                   ": ", culprit.why, Others(diagnosis.ranks, culprit),
                   diagnosis.for_absent
                       ? absl::StrCat("; its logs: ", RankSubdirectory(generation, evidence.rank()))
                       : ""));
  AddEvidence(std::move(diagnosis.ranks), culprit.index, &failure);
  return failure;
}

v1::Failure HangOf(const v1::Failure& victim, const std::vector<v1::RankEvidence>& now,
                   const std::vector<v1::RankEvidence>& before, absl::Duration age) {
  const std::optional<rpc::ProgramError> error = rpc::FindProgramError(victim.exit());
  const std::string vain =
      absl::StrCat("rank ", victim.rank(), " waited for it until a timeout of its own",
                   error.has_value() ? absl::StrCat(": ", error->text) : "");
  std::vector<v1::RankEvidence> ranks = ElsewhereNow(now, before, victim.rank());
  // Ranks that waited with the victim have ended by now, or still wait: a rank that lives elsewhere
  // is the one that did not come.
  const bool lives = !ranks.empty();
  if (!lives) ranks = before;
  if (ranks.empty()) {
    v1::Failure failure = victim;
    failure.set_cause(v1::HANG);
    failure.set_message(
        Shortened(absl::StrCat(rpc::WorkerName(victim.rank(), victim.local_rank(), victim.node()),
                               " waited for other ranks until a timeout of its own in generation ",
                               victim.generation(), error.has_value() ? ": " : "",
                               error.has_value() ? error->text : ""),
                  state::kMaxMessageBytes));
    return failure;
  }
  const Culprit culprit = PickCulprit(ranks);
  const v1::RankEvidence& rank = ranks[culprit.index];
  const std::string when =
      lives ? "" : absl::StrCat(" (", ShortDuration(age), " before the timeout)");
  v1::Failure failure =
      Hang(rank, victim.generation(),
           absl::StrCat(NameOf(rank), " did not come in generation ", victim.generation(), ": ",
                        culprit.why, Others(ranks, culprit), when, "; ", vain));
  AddEvidence(std::move(ranks), culprit.index, &failure);
  return failure;
}

void Job::OnEvidence(const saved::Member& member, const v1::NodeEvidence& evidence) {
  Suspects& suspects = volatile_.suspects;
  const MonoTime now = context_.clock.now();
  if (evidence.stall() && !suspects.probe.has_value() && now >= suspects.next_probe_at) {
    suspects.probe =
        StartDiagnosis(state_.generation, volatile_.connections, member.node(), now, &out_,
                       /*briefly=*/true);
  }
  if (suspects.probe.has_value()) {
    AddAnswer(evidence, member, &*suspects.probe);
    MarkDirty(false);
  }
  std::optional<HangDiagnosis>& diagnosis = suspects.diagnosis;
  if (!evidence.hang() && !diagnosis.has_value()) return;
  if (!diagnosis.has_value())
    diagnosis = StartDiagnosis(state_.generation, volatile_.connections, member.node(), now, &out_);
  AddAnswer(evidence, member, &*diagnosis);
  MarkDirty(false);
}

bool Job::AdvanceDiagnosis() {
  Suspects& suspects = volatile_.suspects;
  if (suspects.diagnosis.has_value() && suspects.diagnosis->IsOver(context_.clock.now())) {
    EndDiagnosis();
    return true;
  }
  if (suspects.probe.has_value() && suspects.probe->IsOver(context_.clock.now())) EndProbe();
  const std::vector<v1::Failure>& victims = suspects.victims.failures;
  if (!victims.empty() && !suspects.diagnosis.has_value()) {
    if (victims.size() + state_.generation.succeeded >= state_.generation.world_size()) {
      FailVictims({});
      return true;
    }
    if (context_.clock.now() >= suspects.victims.fails_at) {
      HangDiagnosis diagnosis =
          StartDiagnosis(state_.generation, volatile_.connections, "", context_.clock.now(), &out_);
      diagnosis.for_lost = true;
      diagnosis.otherwise = CauseOfLoss(state_.generation, victims);
      suspects.diagnosis = std::move(diagnosis);
    }
  }
  if (!suspects.given_up.has_value() || context_.clock.now() < suspects.given_up->fails_at) {
    return false;
  }
  const v1::Failure failure = std::exchange(suspects.given_up, std::nullopt)->failure;
  if (state_.generation.worker(failure.rank()) == saved::RANK_SUCCEEDED) return false;
  FailWorker(failure);
  return true;
}

void Job::EndDiagnosis() {
  CADRE_CHECK(volatile_.suspects.diagnosis.has_value(), "job ", name_);
  HangDiagnosis diagnosis = *std::exchange(volatile_.suspects.diagnosis, std::nullopt);
  // Only AdvanceDiagnosis() looks for lost ranks, and it sets what follows if none is found.
  CADRE_CHECK(!diagnosis.for_lost || diagnosis.otherwise.has_value(), "job ", name_);
  if (diagnosis.for_lost && rpc::PeerWaitTimedOut(diagnosis.otherwise->exit())) {
    return FailVictims(diagnosis.ranks);
  }
  const std::optional<v1::Failure> failure =
      FailureFrom(std::move(diagnosis), state_.generation.number());
  if (failure.has_value()) FailWorker(*failure);
}

void Job::EndProbe() {
  Suspects& suspects = volatile_.suspects;
  CADRE_CHECK(suspects.probe.has_value(), "job ", name_);
  HangDiagnosis probe = *std::exchange(suspects.probe, std::nullopt);
  suspects.next_probe_at = context_.clock.now() + kProbeInterval;
  if (probe.ranks.empty()) return;
  suspects.standstill = {probe.ranks, StandstillText(probe.ranks), context_.clock.now()};
  MarkDirty(true);
}

void Job::FailVictims(const std::vector<v1::RankEvidence>& others) {
  CADRE_CHECK(!volatile_.suspects.victims.failures.empty(), "job ", name_);
  const v1::Failure cause = CauseOfLoss(state_.generation, volatile_.suspects.victims.failures);
  if (!rpc::PeerWaitTimedOut(cause.exit())) return FailWorker(cause);
  const std::optional<Standstill>& before = volatile_.suspects.standstill;
  FailWorker(HangOf(cause, others,
                    before.has_value() ? before->ranks : std::vector<v1::RankEvidence>(),
                    before.has_value() ? context_.clock.now() - before->at : absl::ZeroDuration()));
}

}  // namespace cadre::job
