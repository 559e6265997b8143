// Hang diagnosis: all nodes are asked where their workers are, because a worker hangs or others
// lost it; from their answers follows which rank is to blame (culprit.h). Job begins and ends it
// (Job::OnEvidence(), AdvanceDiagnosis() and EndDiagnosis(), also in hang_diagnosis.cc). Pure.
#ifndef CADRE_RENDEZVOUS_JOB_HANG_DIAGNOSIS_H_
#define CADRE_RENDEZVOUS_JOB_HANG_DIAGNOSIS_H_

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
#include "rendezvous/job/job_outbox.h"
#include "rendezvous/job/node_connections.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// How long the other nodes may take to answer: an agent takes up to 0.6 s if an interpreter does
// not respond, and gives up after 0.9 s.
constexpr absl::Duration kDiagnosisTimeout = absl::Seconds(1);

struct HangDiagnosis {
  // Workers went on in their processes and wait: only a worker that was newly started and is absent
  // is to blame. If there is none, the result is `otherwise`, if it is set.
  bool for_absent = false;
  // Workers lost a rank whose own end was never reported: the result is `otherwise`, with where the
  // other ranks are.
  bool for_lost = false;
  std::optional<v1::Failure> otherwise;
  MonoTime deadline;
  std::set<std::string> awaited;
  std::set<std::string> answered;
  std::vector<v1::RankEvidence> ranks;

  bool IsOver(MonoTime now) const { return awaited.empty() || now >= deadline; }
};

// Asks all connected nodes of the generation but `except` where their workers are. `briefly`:
// nothing will be stopped because of it, so agents leave out what is slow to find.
HangDiagnosis StartDiagnosis(const state::Generation& generation,
                             const NodeConnections& connections, const std::string& except,
                             MonoTime now, JobOutbox* out, bool briefly = false);

// Adds the answer of the member's node.
void AddAnswer(const v1::NodeEvidence& evidence, const saved::Member& member,
               HangDiagnosis* diagnosis);

// Returns the failure that follows from the answers, if any: that of the worker to blame, or
// `otherwise`.
std::optional<v1::Failure> FailureFrom(HangDiagnosis diagnosis, uint64_t generation);

// The victim's wait for others ended by a timeout of its own: returns the hang of the rank that did
// not come. `now` is where the ranks are at present, `before` where they were while the victim
// still waited, `age` ago. Either may be empty; if neither identifies a rank, the hang is the
// victim's.
v1::Failure HangOf(const v1::Failure& victim, const std::vector<v1::RankEvidence>& now,
                   const std::vector<v1::RankEvidence>& before, absl::Duration age);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_HANG_DIAGNOSIS_H_
