// Limits of a store, all declared here for servers and clients alike.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_STORE_LIMITS_H_
#define CADRE_RENDEZVOUS_KEYSPACE_STORE_LIMITS_H_

#include <cstddef>

#include "absl/time/time.h"

namespace cadre::keyspace {

inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = 64 << 10;
// Keys and communicator ids of one store, together.
inline constexpr size_t kMaxKeys = 65536;
inline constexpr size_t kMaxStoreBytes = size_t{256} << 20;

inline constexpr size_t kMaxWaiters = 65536;
// How many requesters one waiting request may have, each repetition adding one.
inline constexpr size_t kMaxRequestersPerWaiter = 8;
// Longer waits are cut to this.
inline constexpr absl::Duration kMaxWait = absl::Hours(1);

// How many replies are kept: of one client, of all, and in bytes.
inline constexpr size_t kMaxAnswersPerClient = 1024;
inline constexpr size_t kMaxAnswers = 65536;
inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;
// The length of the text of one reply.
inline constexpr size_t kMaxMessageBytes = 1024;

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_STORE_LIMITS_H_
