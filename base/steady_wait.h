// Timed waits by the monotonic clock. Those of absl::Mutex and absl::Notification go by the wall
// clock: when that is set back by an hour they last an hour longer, and when it is set forward they
// are over at once.
#ifndef CADRE_BASE_STEADY_WAIT_H_
#define CADRE_BASE_STEADY_WAIT_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace cadre {

// Waits until `holds()` is true, for `limit` at most, and returns whether it is true. The code that
// makes it true must notify `changed`. The lock is released while it waits.
template <typename Holds>
bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
             absl::Duration limit, Holds holds) {
  // Later times may overflow the clock.
  const absl::Duration some = std::clamp(limit, absl::ZeroDuration(), absl::Hours(24 * 365));
  return changed.wait_until(
      lock, std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(some), holds);
}

}  // namespace cadre

#endif  // CADRE_BASE_STEADY_WAIT_H_
