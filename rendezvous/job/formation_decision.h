// How a generation forms: whether it forms now, or why not yet, and which rank each node gets.
// Pure.
#ifndef CADRE_RENDEZVOUS_JOB_FORMATION_DECISION_H_
#define CADRE_RENDEZVOUS_JOB_FORMATION_DECISION_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/record.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {

// The state of gathering at one moment. Times are now() of the lease clock.
struct Gathering {
  // Nodes that could take part now.
  uint32_t present = 0;
  // The upper bound of nodes that take part, whatever the policy allows.
  uint32_t most = std::numeric_limits<uint32_t>::max();
  // The environment named the expected nodes, and all of them are present.
  bool all_expected = false;
  // Members of the last generation that are not lost, and whether all of them are present.
  uint32_t survivors = 0;
  bool survivors_in = false;
  MonoTime since;
  MonoTime not_before;
  MonoTime last_join;
  // When the cluster gave the job its last node, whose launcher joins after that.
  MonoTime granted;
};

struct FormationDecision {
  enum Kind { kForm, kWait, kGiveUp };
  Kind kind = kWait;
  // The number of nodes to take, and why now; only for kForm.
  uint32_t size = 0;
  v1::GenerationFormed::Why why = v1::GenerationFormed::WHY_UNSPECIFIED;
  // The reason in words.
  std::string reason;
  // When to decide again if nothing happens before; only for kWait.
  MonoTime again_at = MonoTime::Never();
};

FormationDecision DecideFormation(const Gathering& gathering, const state::Policy& policy,
                                  MonoTime now);

struct RankCandidate {
  std::string node;
  std::string host;
  uint32_t slots = 1;
  // The node rank the user asked for, or -1.
  int32_t wanted_node_rank = -1;
  // Order of arrival.
  uint64_t admission = 0;
};

struct RankAssignment {
  // In node rank order, ranks contiguous.
  std::vector<saved::Member> members;
  // Wanted node ranks that could not be granted, in words.
  std::vector<std::string> notes;
};

// Assigns node ranks 0..n-1 to the candidates: first the wanted ones (of two equal ones the earlier
// arrival wins), then every node that had a node rank in `previous` keeps it if it is free and
// below n, then the others fill the holes in natural order of host and node name. `previous` lists
// nodes by their last node rank; an empty name is a node that is gone.
RankAssignment AssignRanks(std::vector<RankCandidate> candidates,
                           const std::vector<std::string>& previous);

// "n2" before "n10": runs of digits compare as numbers. Negative, 0 or positive, like strcmp.
int CompareNaturally(absl::string_view a, absl::string_view b);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_FORMATION_DECISION_H_
