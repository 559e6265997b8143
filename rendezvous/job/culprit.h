// Finds which rank is to blame for a hang or a failure: from where each rank is, from the calls
// that PyTorch's flight recorder shows, or because it ended too early. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_CULPRIT_H_
#define CADRE_RENDEZVOUS_JOB_CULPRIT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "proto/failure.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

struct Culprit {
  size_t index = 0;
  // The reason, to follow "made no progress: ".
  std::string why;
  // Other ranks that are to blame for the same.
  std::vector<size_t> others = {};
};

// Returns the newly started rank that has not arrived where the ranks that went on in their
// processes wait for it.
std::optional<Culprit> WhoIsAbsent(const std::vector<v1::RankEvidence>& ranks);

// Picks the rank to blame; `ranks` must not be empty. The rules, in this order: a stopped process;
// by progress pages, the rank for which others' collectives wait, or that is steps behind; by
// PyTorch's flight recorder, the one that made another call than most; by Python stacks, the one
// that is not in the collective in which others wait; by the recorder again, the one that has not
// called what others wait in, that has not met another's message, or that reports no calls of a
// group in which all others wait; by stacks, the one that is in another collective than most; the
// one that burns a core while most sleep, or sleeps while most burn; the one that reported the
// lowest step; one that is overdue, the longest silent first.
Culprit PickCulprit(const std::vector<v1::RankEvidence>& ranks);

// Returns where the ranks are, in a few words for people who watch a job without progress: "rank 1
// at hang.py:7, 3 ranks wait for it in all_reduce". `ranks` must not be empty.
std::string StandstillText(const std::vector<v1::RankEvidence>& ranks);

// Returns the failure of the first rank that ended with exit code 0, if any, while others still
// worked with it: it is why `victims`, ranks that lost another one, failed. Its message names all
// ranks that have succeeded, and the victims.
std::optional<v1::Failure> EarlyEnd(const state::Generation& generation,
                                    const std::vector<v1::Failure>& victims);

// The rank that made another call than the others in one of PyTorch's process groups, or has not
// made the call in which they wait, by the flight recorder of each rank. The functions below
// compare what PyTorch's own analyzer compares (torch/distributed/flight_recorder).
struct MismatchedCall {
  // The index of the rank to blame, and of one that is not.
  size_t index = 0;
  size_t other = 0;
  // The reason: "it called all_reduce with [1] Float as number 2 of process group default_pg, and
  // rank 0 with [4] Float: ...".
  std::string why;
  // Other ranks that are to blame for the same.
  std::vector<size_t> others = {};
};

// Finds the first call of a group that its callers made differently: those who made it in the
// rarest way are to blame, and among equals the highest rank.
std::optional<MismatchedCall> WhoCalledSomethingElse(const std::vector<v1::RankEvidence>& ranks);

// Finds the ranks that have not made the call in which others of a group wait, in the smallest such
// group.
std::optional<MismatchedCall> WhoHasNotCalled(const std::vector<v1::RankEvidence>& ranks);

// Finds a rank that does not make the send or receive for which another rank waits. If it waits for
// a third one itself, that one is to blame.
std::optional<MismatchedCall> WhoHasNotMetAMessage(const std::vector<v1::RankEvidence>& ranks);

// Finds a member of a group in which others wait that reports none of its calls, though others do.
std::optional<MismatchedCall> WhoIsSilent(const std::vector<v1::RankEvidence>& ranks);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_CULPRIT_H_
