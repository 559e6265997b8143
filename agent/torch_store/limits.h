// Limits of the store that an agent serves to PyTorch. All of them are declared here.
#ifndef CADRE_AGENT_TORCH_STORE_LIMITS_H_
#define CADRE_AGENT_TORCH_STORE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace cadre::agent {

// Those of PyTorch's own server.
inline constexpr size_t kMaxTorchKeyBytes = 8 << 10;
inline constexpr size_t kMaxTorchValueBytes = 8 << 20;
inline constexpr uint64_t kMaxTorchKeysPerCall = 131072;

// One request, all its keys and values together.
inline constexpr size_t kMaxTorchRequestBytes = size_t{64} << 20;
// Of one generation: keys, values, queues, waits, requests that are not complete, and answers that
// have not been read.
inline constexpr size_t kMaxTorchStoreBytes = size_t{512} << 20;
inline constexpr size_t kMaxTorchConnections = 16384;
// Bytes of answers that a client has not read; beyond that nothing more is read from it.
inline constexpr size_t kMaxTorchUnreadBytes = 1 << 20;
// A client that has not shown by then that it speaks the protocol is dropped.
inline constexpr absl::Duration kTorchValidationTime = absl::Seconds(10);
// What still waits so long after its generation was told to stop waits for nothing, and its
// connection is closed: a program that handles SIGTERM hears of it only then. Who does not handle
// it has ended before, and says nothing.
inline constexpr absl::Duration kTorchStopPatience = absl::Milliseconds(500);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_LIMITS_H_
