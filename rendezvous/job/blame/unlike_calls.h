// Which rank called something else than the others in one of PyTorch's process groups, or has not
// called what they wait in: told from what its flight recorder has of each. What is compared is
// what PyTorch's own analyzer compares (torch/distributed/flight_recorder). Pure.
#ifndef CADRE_RENDEZVOUS_JOB_BLAME_UNLIKE_CALLS_H_
#define CADRE_RENDEZVOUS_JOB_BLAME_UNLIKE_CALLS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "proto/failure.pb.h"

namespace cadre::job {

struct UnlikeCall {
  // Of the rank that is to blame, and of one that is not.
  size_t index = 0;
  size_t other = 0;
  // "it called all_reduce 2 of process group default_pg with [1] Float, and rank 0 with [4] Float".
  std::string why;
  // Others who are to blame for the same.
  std::vector<size_t> others = {};
};

// The first call of a group that not all who called it called alike: the fewest are to blame, and
// among equals the highest rank.
std::optional<UnlikeCall> WhoCalledSomethingElse(const std::vector<v1::RankEvidence>& ranks);

// The ranks that have not called what others of a group wait in; of the smallest such group.
std::optional<UnlikeCall> WhoHasNotCalled(const std::vector<v1::RankEvidence>& ranks);

// One rank sends to another, or receives from it, and that one does not meet it. Where it waits for
// a third, that one is to blame.
std::optional<UnlikeCall> WhoHasNotMetAMessage(const std::vector<v1::RankEvidence>& ranks);

// A member of a group in which others wait that tells nothing of its calls, though others do.
std::optional<UnlikeCall> WhoIsSilent(const std::vector<v1::RankEvidence>& ranks);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_BLAME_UNLIKE_CALLS_H_
