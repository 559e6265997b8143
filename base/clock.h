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

}  // namespace cadre

#endif  // CADRE_BASE_CLOCK_H_
