#include "rpc/grpc_timers.h"

#include <time.h>

#include <atomic>
#include <cstdint>
#include <limits>

#include "base/clock.h"

// gRPC's own (src/core/lib/iomgr/timer.h), which has no public header.
void grpc_kick_poller();

namespace cadre::rpc {
namespace {

// Less than that is a clock that is being adjusted, or a thread that was interrupted.
constexpr int64_t kSetBackUs = 100000;

// Nothing is before that.
std::atomic<int64_t> last_difference_us{std::numeric_limits<int64_t>::min() + kSetBackUs};

}  // namespace

void WakeGrpcTimersIfClockWasSetBack() {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t difference_us =
      int64_t{wall.tv_sec} * 1000000 + wall.tv_nsec / 1000 - MonoNow().micros();
  const int64_t before_us = last_difference_us.exchange(difference_us);
  if (difference_us < before_us - kSetBackUs) grpc_kick_poller();
}

}  // namespace cadre::rpc
