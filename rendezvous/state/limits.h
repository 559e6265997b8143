// How much of a past is kept.
#ifndef CADRE_RENDEZVOUS_STATE_LIMITS_H_
#define CADRE_RENDEZVOUS_STATE_LIMITS_H_

#include <cstddef>

namespace cadre::state {

// Ended jobs that are remembered; the oldest of the user who has most goes first.
constexpr size_t kMaxEndedJobs = 1000;
constexpr int kMaxCollateral = 16;
constexpr int kMaxEarlier = 64;
constexpr int kMaxTimeline = 256;
// Ranks of which a failure says where they were.
constexpr int kMaxEvidence = 64;

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_LIMITS_H_
