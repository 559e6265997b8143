// Limits of what the state keeps of users' jobs, and of jobs that have ended.
#ifndef CADRE_RENDEZVOUS_STATE_STATE_LIMITS_H_
#define CADRE_RENDEZVOUS_STATE_STATE_LIMITS_H_

#include <cstddef>

namespace cadre::state {

// How many ended jobs are kept. The oldest one of the user who has the most is dropped first.
constexpr size_t kMaxEndedJobs = 1000;

// Bytes of the directory and the command's words that an ended job keeps.
constexpr size_t kMaxEndedSpecBytes = 4 << 10;

// The bytes that all jobs which have not ended take together: of one user, and of all users. A user
// reaches their own limit first, so that no single user can keep others out. docs/security.md names
// these limits.
//
// Specs, which ended jobs no longer have:
constexpr size_t kMaxSpecBytesOfUser = size_t{64} << 20;
constexpr size_t kMaxSpecBytesOfAll = size_t{512} << 20;
// Keys, ids and answers in stores:
constexpr size_t kMaxStoreBytesOfUser = size_t{1} << 30;
constexpr size_t kMaxStoreBytesOfAll = size_t{4} << 30;

constexpr int kMaxCollateral = 16;
constexpr int kMaxEarlier = 64;
constexpr int kMaxTimeline = 256;
// How many ranks' evidence a failure carries.
constexpr int kMaxEvidence = 64;

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_STATE_LIMITS_H_
