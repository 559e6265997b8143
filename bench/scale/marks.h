// When something first happened to each of a number of things. Thread safe.
#ifndef CADRE_BENCH_SCALE_MARKS_H_
#define CADRE_BENCH_SCALE_MARKS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/time.h"

namespace cadre {

class Marks {
 public:
  explicit Marks(size_t count)
      : count_(count), left_(count), at_us_(std::make_unique<std::atomic<int64_t>[]>(count)) {}

  void Mark(size_t which) {
    int64_t unset = 0;
    if (!at_us_[which].compare_exchange_strong(unset, MonoNow().micros())) return;
    if (left_.fetch_sub(1) == 1) all_.Notify();
  }

  // False when not all were marked in time.
  bool WaitForAll(absl::Duration timeout) const {
    return all_.WaitForNotificationWithTimeout(timeout);
  }
  size_t count() const { return count_; }
  size_t marked() const { return count_ - left_.load(); }

  // From `start` to each mark, ascending. For when all are marked.
  std::vector<double> SortedMillisSince(MonoTime start) const {
    std::vector<double> millis;
    for (size_t i = 0; i < count_; ++i) {
      millis.push_back(static_cast<double>(at_us_[i].load() - start.micros()) / 1000);
    }
    std::sort(millis.begin(), millis.end());
    return millis;
  }
  double LastMillisSince(MonoTime start) const { return SortedMillisSince(start).back(); }

 private:
  const size_t count_;
  std::atomic<size_t> left_;
  // 0: not yet.
  const std::unique_ptr<std::atomic<int64_t>[]> at_us_;
  absl::Notification all_;
};

// Of an ascending, not empty list: the value that `part` of it do not exceed.
inline double Percentile(const std::vector<double>& sorted, double part) {
  const size_t at = static_cast<size_t>(part * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_MARKS_H_
