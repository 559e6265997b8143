// Limits of a store. All of them are declared here, for those who serve one and for those who ask.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_LIMITS_H_
#define CADRE_RENDEZVOUS_KEYSPACE_LIMITS_H_

#include <cstddef>

#include "absl/time/time.h"

namespace cadre::keyspace {

inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = 64 << 10;
// Keys and communicator ids of one store, together.
inline constexpr size_t kMaxKeys = 65536;
inline constexpr size_t kMaxStoreBytes = size_t{256} << 20;

inline constexpr size_t kMaxWaiters = 65536;
// Times that one waiting request may be repeated.
inline constexpr size_t kMaxAskersPerWaiter = 8;
// A longer wait is cut to this.
inline constexpr absl::Duration kMaxWait = absl::Hours(1);

// Answers remembered: of one client, and of all.
inline constexpr size_t kMaxAnswersPerClient = 1024;
inline constexpr size_t kMaxAnswers = 65536;
inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;
// Text of one answer.
inline constexpr size_t kMaxMessageBytes = 1024;

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_LIMITS_H_
