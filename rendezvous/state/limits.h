// How much is kept: of users' jobs, and of a past.
#ifndef CADRE_RENDEZVOUS_STATE_LIMITS_H_
#define CADRE_RENDEZVOUS_STATE_LIMITS_H_

#include <cstddef>

namespace cadre::state {

// Ended jobs that are remembered; the oldest of the user who has most goes first.
constexpr size_t kMaxEndedJobs = 1000;

// The directory and the words of its command that an ended job keeps.
constexpr size_t kMaxEndedSpecBytes = 4 << 10;

// Bytes of the jobs that have not ended, together: of one user, and of all. A user's own limit
// comes first, so that nobody keeps others out alone. docs/security.md names them.
//
// Specs, which an ended job has no more of.
constexpr size_t kMaxSpecBytesOfUser = size_t{64} << 20;
constexpr size_t kMaxSpecBytesOfAll = size_t{512} << 20;
// Keys, ids and answers in stores.
constexpr size_t kMaxStoreBytesOfUser = size_t{1} << 30;
constexpr size_t kMaxStoreBytesOfAll = size_t{4} << 30;

constexpr int kMaxCollateral = 16;
constexpr int kMaxEarlier = 64;
constexpr int kMaxTimeline = 256;
// Ranks of which a failure says where they were.
constexpr int kMaxEvidence = 64;

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_LIMITS_H_
