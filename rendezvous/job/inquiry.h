// Nodes are asked where their workers are, because one of them hangs, or others lost it. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_INQUIRY_H_
#define CADRE_RENDEZVOUS_JOB_INQUIRY_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/job/connections.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// How long the nodes that do not hang may take to say where their workers are: an agent takes up to
// 0.6 s where an interpreter does not answer, and gives a look up after 0.9 s.
constexpr absl::Duration kInquiryLimit = absl::Seconds(1);

struct Inquiry {
  // Workers went on in their processes and wait: only one that was started anew and is absent is to
  // blame. Where there is none, this happened, if anything.
  bool for_absent = false;
  // `otherwise` has happened, for want of a rank that went without a word: where are the others?
  bool for_lost = false;
  std::optional<v1::Failure> otherwise;
  MonoTime deadline;
  std::set<std::string> awaited;
  std::set<std::string> heard;
  std::vector<v1::RankEvidence> ranks;

  bool IsOver(MonoTime now) const { return awaited.empty() || now >= deadline; }
};

// Asks all nodes of the generation that are connected, but `except`, where their workers are.
// `briefly`: nothing is going to be stopped for it.
Inquiry Inquire(const state::Generation& generation, const Connections& connections,
                const std::string& except, MonoTime now, Outbox* out, bool briefly = false);

// The member's node answers.
void Hear(const v1::NodeEvidence& evidence, const saved::Member& member, Inquiry* inquiry);

// What the answers amount to: the failure of the worker that is to blame, if one is.
std::optional<v1::Failure> FailureFoundBy(Inquiry inquiry, uint64_t generation);

// A timeout of the victim's own ended its wait for others: the hang of the rank that did not come.
// `now` are ranks as they are found now, `before` as they were while the victim still waited, and
// `age` how long ago that was; either may be empty, and where neither tells it is the victim's.
v1::Failure HangOf(const v1::Failure& victim, const std::vector<v1::RankEvidence>& now,
                   const std::vector<v1::RankEvidence>& before, absl::Duration age);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_INQUIRY_H_
