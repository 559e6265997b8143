// Durations as messages carry them.
#ifndef CADRE_BASE_DURATION_H_
#define CADRE_BASE_DURATION_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace cadre {

// Ten years. Sums of longer durations could overflow the microseconds of MonoTime.
inline constexpr int64_t kMaxDurationSeconds = int64_t{10} * 365 * 24 * 3600;

// The result is between 0 and kMaxDurationSeconds, whatever the peer sent.
inline absl::Duration FromProto(const google::protobuf::Duration& duration) {
  const int64_t seconds = std::clamp<int64_t>(duration.seconds(), 0, kMaxDurationSeconds);
  const int32_t nanos = std::clamp<int32_t>(duration.nanos(), 0, 999999999);
  return absl::Seconds(seconds) + absl::Nanoseconds(nanos);
}

inline google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace cadre

#endif  // CADRE_BASE_DURATION_H_
