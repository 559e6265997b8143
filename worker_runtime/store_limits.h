// Limits of the store that a generation's workers share (proto/store.proto).
#ifndef CADRE_WORKER_RUNTIME_STORE_LIMITS_H_
#define CADRE_WORKER_RUNTIME_STORE_LIMITS_H_

#include <cstddef>

#include "absl/time/time.h"

namespace cadre {

constexpr size_t kMaxStoreKeyBytes = 256;
constexpr size_t kMaxStoreValueBytes = 64 * 1024;
// A longer wait is cut to this.
constexpr absl::Duration kMaxStoreWait = absl::Hours(1);
// What a call may take beyond the time it waits.
constexpr absl::Duration kCallMargin = absl::Seconds(10);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_STORE_LIMITS_H_
