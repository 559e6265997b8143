// Whether a generation forms now, and why not yet. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_FORMATION_H_
#define CADRE_RENDEZVOUS_JOB_FORMATION_H_

#include <cstdint>
#include <limits>
#include <string>

#include "base/time.h"
#include "proto/record.pb.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {

// A gathering at one moment, in numbers.
struct Gathering {
  // Nodes that could take part now.
  uint32_t present = 0;
  // No more than these take part, whatever the policy allows.
  uint32_t most = std::numeric_limits<uint32_t>::max();
  // The environment named the nodes that will come, and all of them are present.
  bool all_expected = false;
  // Members of the last generation that are not lost, and whether all of them are present.
  uint32_t survivors = 0;
  bool survivors_in = false;
  MonoTime since;
  MonoTime not_before;
  MonoTime last_join;
  // When the cluster gave it its last node, whose launcher comes after that.
  MonoTime granted;
};

struct FormationDecision {
  enum Kind { kForm, kWait, kGiveUp };
  Kind kind = kWait;
  // Nodes to take, and why now; only for kForm.
  uint32_t size = 0;
  v1::GenerationFormed::Why why = v1::GenerationFormed::WHY_UNSPECIFIED;
  // In words.
  std::string reason;
  // When another answer is due though nothing happens; only for kWait.
  MonoTime again_at = MonoTime::Never();
};

FormationDecision DecideFormation(const Gathering& gathering, const state::Policy& policy,
                                  MonoTime now);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_FORMATION_H_
