// Who gets which rank. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_RANKS_H_
#define CADRE_RENDEZVOUS_JOB_RANKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/state.pb.h"

namespace cadre::job {

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
  // Wishes that could not be met, in words.
  std::vector<std::string> notes;
};

// Node ranks 0..n-1 for the candidates: first the wishes (of two equal ones the earlier arrival's),
// then every node that had a node rank in `previous` keeps it where it is free and below n, then
// the others fill the holes in natural order of host and node name. `previous` holds the nodes by
// their last node rank; an empty name is a node that is gone.
RankAssignment AssignRanks(std::vector<RankCandidate> candidates,
                           const std::vector<std::string>& previous);

// "n2" before "n10": runs of digits compare as numbers. Negative, 0 or positive, like strcmp.
int CompareNaturally(absl::string_view a, absl::string_view b);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_RANKS_H_
