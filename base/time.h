// Monotonic time as a value. Pure code receives it as an argument; only base/clock.h reads a clock.
#ifndef CADRE_BASE_TIME_H_
#define CADRE_BASE_TIME_H_

#include <chrono>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace cadre {

// Microseconds since an origin that one process chooses. Never compared between processes.
class MonoTime {
 public:
  constexpr MonoTime() = default;
  static constexpr MonoTime FromMicros(int64_t us) { return MonoTime(us); }
  // Later than every moment: "no deadline".
  static constexpr MonoTime Never() { return MonoTime(std::numeric_limits<int64_t>::max()); }

  constexpr int64_t micros() const { return us_; }

  // Adding to Never(), or adding an infinite duration, gives Never().
  friend MonoTime operator+(MonoTime t, absl::Duration d) {
    if (t == Never() || d == absl::InfiniteDuration()) return Never();
    return MonoTime(t.us_ + absl::ToInt64Microseconds(d));
  }
  friend MonoTime operator+(MonoTime t, std::chrono::nanoseconds d) {
    if (d == std::chrono::nanoseconds::max()) return Never();
    return t + absl::FromChrono(d);
  }
  friend absl::Duration operator-(MonoTime a, MonoTime b) {
    if (a == Never()) return absl::InfiniteDuration();
    return absl::Microseconds(a.us_ - b.us_);
  }
  friend constexpr bool operator==(MonoTime a, MonoTime b) { return a.us_ == b.us_; }
  friend constexpr bool operator!=(MonoTime a, MonoTime b) { return a.us_ != b.us_; }
  friend constexpr bool operator<(MonoTime a, MonoTime b) { return a.us_ < b.us_; }
  friend constexpr bool operator<=(MonoTime a, MonoTime b) { return a.us_ <= b.us_; }
  friend constexpr bool operator>(MonoTime a, MonoTime b) { return a.us_ > b.us_; }
  friend constexpr bool operator>=(MonoTime a, MonoTime b) { return a.us_ >= b.us_; }

 private:
  explicit constexpr MonoTime(int64_t us) : us_(us) {}
  int64_t us_ = 0;
};

}  // namespace cadre

#endif  // CADRE_BASE_TIME_H_
