// Reads the machine's monotonic clock. Kept apart from time.h so that pure code cannot reach it.
#ifndef CADRE_BASE_CLOCK_H_
#define CADRE_BASE_CLOCK_H_

#include <time.h>

#include "base/time.h"

namespace cadre {

// CLOCK_MONOTONIC: changes of the wall clock do not affect it; it stops while the machine sleeps.
inline MonoTime MonoNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return MonoTime::FromMicros(int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000);
}

// CLOCK_BOOTTIME: it continues while the machine sleeps. Its times may be compared with one another
// only, but across all processes of the machine.
inline MonoTime BootNow() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return MonoTime::FromMicros(int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000);
}

// How long the machine has slept so far: BootNow() - MonoNow(). BootNow() is read first, so that
// the result is too small, and never too large, by the time between the two readings.
inline absl::Duration TimeAsleep() {
  const MonoTime boot = BootNow();
  return boot - MonoNow();
}

}  // namespace cadre

#endif  // CADRE_BASE_CLOCK_H_
