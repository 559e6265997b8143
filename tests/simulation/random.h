// The one source of chance in a simulated history: the same seed gives the same numbers, on every
// machine. SplitMix64 (Steele, Lea, Flood 2014). One thread.
#ifndef CADRE_TESTS_SIMULATION_RANDOM_H_
#define CADRE_TESTS_SIMULATION_RANDOM_H_

#include <cstdint>

#include "absl/time/time.h"

namespace cadre::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 to n - 1.
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  // low to high, both included.
  int Between(int low, int high) { return low + Below(high - low + 1); }
  bool Percent(double chance) { return Below(1000000) < chance * 10000; }
  // Whole microseconds, from low up to, but not including, high.
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const int64_t span = absl::ToInt64Microseconds(high - low);
    if (span <= 0) return low;
    return low + absl::Microseconds(static_cast<int64_t>(Next() % static_cast<uint64_t>(span)));
  }

 private:
  uint64_t state_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_RANDOM_H_
