// A hang: the nodes say where their workers are, the culprit is named, the generation is stopped.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/culprit.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/apply.h"

namespace cadre {
namespace {

// Of all nodes together; later ones are not looked at.
constexpr size_t kMaxInquiryRanks = 1 << 16;

}  // namespace

void Core::Impl::OnEvidence(const Session& session, const v1::NodeEvidence& evidence) {
  JobState* job = FindJob(session.job);
  Live& live = lives[session.job];
  if (job->phase != v1::RUNNING || (!evidence.hang() && !live.hang.has_value())) return;
  if (!live.hang.has_value()) BeginInquiry(session.job, session.node, *job, &live);
  HangInquiry& inquiry = *live.hang;
  if (evidence.hang()) inquiry.for_absent = false;
  const MemberState& member = job->generation.members[NodeRankOf(*job, session.node)];
  if (inquiry.heard.insert(session.node).second) {
    for (const v1::RankEvidence& said : evidence.ranks()) {
      if (inquiry.ranks.size() >= kMaxInquiryRanks) break;
      if (said.local_rank() < 0 || static_cast<uint32_t>(said.local_rank()) >= member.slots) {
        continue;
      }
      inquiry.ranks.push_back(CleanEvidence(said, member));
    }
  }
  inquiry.awaited.erase(session.node);
  Touch(session.job, false);
}

bool Core::Impl::AwaitsOthers(const JobState& job, const Live& live) const {
  const auto& generations = job.timeline.generations();
  return !generations.empty() && generations.rbegin()->rejoined() > 0 &&
         live.progress.FirstProgressUs(job.generation.number) == 0;
}

void Core::Impl::BeginInquiry(const std::string& name, const std::string& except,
                              const JobState& job, Live* live) {
  HangInquiry& inquiry = live->hang.emplace();
  inquiry.deadline = now + kInquiryLimit;
  for (const MemberState& member : job.generation.members) {
    if (member.lost || member.node == except || member.succeeded == member.slots) continue;
    const auto link = live->links.find(member.node);
    if (link == live->links.end() || !link->second.stream.has_value()) continue;
    inquiry.awaited.insert(member.node);
    v1::ServerMessage message = NewMessage(name, job.generation.number);
    message.mutable_inspect();
    Send(*link->second.stream, std::move(message));
  }
}

bool Core::Impl::AdvanceInquiry(const std::string& name, JobState* job, Live* live) {
  if (!live->hang.has_value()) return false;
  if (!live->hang->awaited.empty() && clock < live->hang->deadline) return false;
  EndInquiry(name, job, live);
  return true;
}

void Core::Impl::EndInquiry(const std::string& name, JobState* job, Live* live) {
  HangInquiry inquiry = *std::move(live->hang);
  live->hang.reset();
  std::optional<Culprit> found;
  if (inquiry.for_absent) {
    found = WhoIsAbsent(inquiry.ranks);
  } else if (!inquiry.ranks.empty()) {  // else it was a report that named nobody
    found = PickCulprit(inquiry.ranks);
  }
  if (!found.has_value()) {
    if (!inquiry.otherwise.has_value()) return;
    EndWorker(name, inquiry.otherwise->rank(), inquiry.otherwise);
    return OrderStop(name, job, inquiry.otherwise->message(), inquiry.otherwise);
  }
  const Culprit& culprit = *found;
  const v1::RankEvidence evidence = inquiry.ranks[culprit.index];
  const std::string silence = evidence.silent_seconds() < 0
                                  ? ""
                                  : absl::StrFormat(" for %.1f s", evidence.silent_seconds());
  v1::Failure failure = PlainFailure(
      v1::HANG, evidence.node(), job->generation.number,
      absl::StrCat("rank ", evidence.rank(), " (local rank ", evidence.local_rank(), ") on ",
                   evidence.node(), " made no progress", silence, " in generation ",
                   job->generation.number, ": ", culprit.why,
                   inquiry.for_absent
                       ? absl::StrCat("; its logs: ",
                                      RankSubdirectory(job->generation.number, evidence.rank()))
                       : ""));
  failure.set_rank(evidence.rank());
  failure.set_local_rank(evidence.local_rank());
  failure.mutable_exit()->set_pid(evidence.pid());
  failure.mutable_exit()->set_last_lines(Shortened(evidence.last_lines(), kMaxLastLinesBytes));
  std::swap(inquiry.ranks[0], inquiry.ranks[culprit.index]);
  std::sort(inquiry.ranks.begin() + 1, inquiry.ranks.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
  for (v1::RankEvidence& rank : inquiry.ranks) {
    if (failure.evidence_size() == kMaxEvidence) break;
    rank.clear_last_lines();
    *failure.add_evidence() = std::move(rank);
  }
  EndWorker(name, evidence.rank(), failure);
  OrderStop(name, job, failure.message(), failure);
}

}  // namespace cadre
