#include "rendezvous/job/inquiry.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/job/blame/culprit.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/limits.h"
#include "rpc/program_error.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

// Of all nodes together; later ones are not looked at.
constexpr size_t kMaxInquiryRanks = 1 << 16;

// Those that run and are in no collective: one of them is who left it.
v1::Failure WithWhereOthersAre(Inquiry inquiry) {
  v1::Failure failure = *std::move(inquiry.otherwise);
  std::sort(inquiry.ranks.begin(), inquiry.ranks.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
  for (v1::RankEvidence& rank : inquiry.ranks) {
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

// The culprit's comes first, then the others in the order of their ranks; without what nobody is
// shown.
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

// "; likewise ranks 3, 5"; empty where nobody else is to blame.
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

// Those of the ranks that live and are in no call for which they need the victim. Who waited
// `before` as the victim did may be about to end as it did, and comes only where there is nobody
// else.
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

}  // namespace

Inquiry Inquire(const state::Generation& generation, const Connections& connections,
                const std::string& except, MonoTime now, Outbox* out, bool briefly) {
  Inquiry inquiry;
  inquiry.deadline = now + kInquiryLimit;
  for (const saved::Member& member : generation.saved.members()) {
    if (member.lost() || member.node() == except || member.succeeded() == member.slots()) continue;
    if (!connections.StreamOf(member.node()).has_value()) continue;
    inquiry.awaited.insert(member.node());
    v1::ServerMessage message = out->Message();
    message.mutable_inspect()->set_briefly(briefly);
    out->SendTo(member.node(), std::move(message));
  }
  return inquiry;
}

void Hear(const v1::NodeEvidence& evidence, const saved::Member& member, Inquiry* inquiry) {
  if (evidence.hang()) inquiry->for_absent = inquiry->for_lost = false;
  inquiry->awaited.erase(member.node());
  if (!inquiry->heard.insert(member.node()).second) return;
  for (const v1::RankEvidence& said : evidence.ranks()) {
    if (inquiry->ranks.size() >= kMaxInquiryRanks) break;
    if (said.local_rank() < 0 || static_cast<uint32_t>(said.local_rank()) >= member.slots())
      continue;
    inquiry->ranks.push_back(CleanEvidence(said, member));
  }
}

std::optional<v1::Failure> FailureFoundBy(Inquiry inquiry, uint64_t generation) {
  if (inquiry.for_lost) return WithWhereOthersAre(std::move(inquiry));
  std::optional<Culprit> found;
  if (inquiry.for_absent) {
    found = WhoIsAbsent(inquiry.ranks);
  } else if (!inquiry.ranks.empty()) {  // else it was a report that named nobody
    found = PickCulprit(inquiry.ranks);
  }
  if (!found.has_value()) return inquiry.otherwise;
  const Culprit& culprit = *found;
  const v1::RankEvidence& evidence = inquiry.ranks[culprit.index];
  const std::string silence = evidence.silent_seconds() < 0
                                  ? ""
                                  : absl::StrFormat(" for %.1f s", evidence.silent_seconds());
  v1::Failure failure = Hang(
      evidence, generation,
      absl::StrCat(NameOf(evidence), " made no progress", silence, " in generation ", generation,
                   ": ", culprit.why, Others(inquiry.ranks, culprit),
                   inquiry.for_absent
                       ? absl::StrCat("; its logs: ", RankSubdirectory(generation, evidence.rank()))
                       : ""));
  AddEvidence(std::move(inquiry.ranks), culprit.index, &failure);
  return failure;
}

v1::Failure HangOf(const v1::Failure& victim, const std::vector<v1::RankEvidence>& now,
                   const std::vector<v1::RankEvidence>& before, absl::Duration age) {
  const std::optional<rpc::ProgramError> error = rpc::FindProgramError(victim.exit());
  const std::string vain =
      absl::StrCat("rank ", victim.rank(), " waited for it until a timeout of its own",
                   error.has_value() ? absl::StrCat(": ", error->text) : "");
  std::vector<v1::RankEvidence> ranks = ElsewhereNow(now, before, victim.rank());
  // Those who waited with the victim have ended by now, or wait still: who lives elsewhere is who
  // did not come.
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

}  // namespace cadre::job
