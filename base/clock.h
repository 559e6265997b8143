// Reads the machine's monotonic clock. Kept apart from time.h so that pure code cannot reach it.
#ifndef CADRE_BASE_CLOCK_H_
#define CADRE_BASE_CLOCK_H_

#include <time.h>

#include "base/time.h"

namespace cadre {

// CLOCK_MONOTONIC: unmoved by changes of the wall clock; stands still while the machine sleeps.
inline MonoTime MonoNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return MonoTime::FromMicros(int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000);
}

// CLOCK_BOOTTIME: goes on while the machine sleeps. Its moments are compared with one another only,
// in all processes of the machine.
inline MonoTime BootNow() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return MonoTime::FromMicros(int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000);
}

// For how long the machine has slept so far: how much later BootNow() is than MonoNow(). Not more
// than that, by however much is between the two readings.
inline absl::Duration TimeAsleep() {
  const MonoTime boot = BootNow();
  return boot - MonoNow();
}

}  // namespace cadre

#endif  // CADRE_BASE_CLOCK_H_
