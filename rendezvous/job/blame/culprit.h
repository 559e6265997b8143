// Which of the ranks of a job that hangs is to blame: told from where each of them is. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_BLAME_CULPRIT_H_
#define CADRE_RENDEZVOUS_JOB_BLAME_CULPRIT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "proto/failure.pb.h"

namespace cadre::job {

struct Culprit {
  size_t index = 0;
  // Goes on from "made no progress: ".
  std::string why;
  // Others who are to blame for the same.
  std::vector<size_t> others = {};
};

// The rank that was started anew and has not come to where the others go on in their processes.
std::optional<Culprit> WhoIsAbsent(const std::vector<v1::RankEvidence>& ranks);

// `ranks` must not be empty. In this order: a stopped process; by the pages, the rank that others'
// collectives wait for, or that is steps behind; by PyTorch's flight recorder, the one that made
// another call than most; by their Python stacks, the one that is not in the collective in which
// others wait; by the recorder again, the one that has not called what others wait in, that has not
// met another's message, or that tells nothing of a group in which all others wait; by the stacks,
// the one that is in another collective than most; the one that burns a core while most sleep, or
// sleeps while most burn; the one that reported the lowest step; one that is overdue, the longest
// silent first.
Culprit PickCulprit(const std::vector<v1::RankEvidence>& ranks);

// Where the ranks stand, in a few words for whoever watches a job in which no step comes: "rank 1
// at hang.py:7, 3 ranks wait for it in all_reduce". `ranks` must not be empty.
std::string StandstillText(const std::vector<v1::RankEvidence>& ranks);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_BLAME_CULPRIT_H_
