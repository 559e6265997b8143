#include "rendezvous/job/inquiry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/job/blame/culprit.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/limits.h"
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

}  // namespace

Inquiry Inquire(const state::Generation& generation, const Connections& connections,
                const std::string& except, MonoTime now, Outbox* out) {
  Inquiry inquiry;
  inquiry.deadline = now + kInquiryLimit;
  for (const saved::Member& member : generation.saved.members()) {
    if (member.lost() || member.node() == except || member.succeeded() == member.slots()) continue;
    if (!connections.StreamOf(member.node()).has_value()) continue;
    inquiry.awaited.insert(member.node());
    v1::ServerMessage message = out->Message();
    message.mutable_inspect();
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
  const v1::RankEvidence evidence = inquiry.ranks[culprit.index];
  const std::string silence = evidence.silent_seconds() < 0
                                  ? ""
                                  : absl::StrFormat(" for %.1f s", evidence.silent_seconds());
  v1::Failure failure = PlainFailure(
      v1::HANG, evidence.node(), generation,
      absl::StrCat(rpc::WorkerName(evidence.rank(), evidence.local_rank(), evidence.node()),
                   " made no progress", silence, " in generation ", generation, ": ", culprit.why,
                   inquiry.for_absent
                       ? absl::StrCat("; its logs: ", RankSubdirectory(generation, evidence.rank()))
                       : ""));
  failure.set_rank(evidence.rank());
  failure.set_local_rank(evidence.local_rank());
  failure.mutable_exit()->set_pid(evidence.pid());
  failure.mutable_exit()->set_last_lines(Shortened(evidence.last_lines(), kMaxLastLinesBytes));
  std::swap(inquiry.ranks[0], inquiry.ranks[culprit.index]);
  std::sort(inquiry.ranks.begin() + 1, inquiry.ranks.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
  for (v1::RankEvidence& rank : inquiry.ranks) {
    if (failure.evidence_size() == state::kMaxEvidence) break;
    rank.clear_last_lines();
    rank.clear_calls();
    *failure.add_evidence() = std::move(rank);
  }
  return failure;
}

}  // namespace cadre::job
