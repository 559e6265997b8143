#include "base/steady_wait.h"

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/wall_clock.h"

namespace cadre {
namespace {

constexpr long kHour = 3600;

// A thread that waits for a condition, for `limit` at most.
class Waiter {
 public:
  explicit Waiter(absl::Duration limit)
      : thread_([this, limit] {
          std::unique_lock<std::mutex> lock(mutex_);
          waits_ = true;
          holds_ = WaitFor(changed_, lock, limit, [this] { return came_; });
        }) {
    // The thread holds the lock from then until it waits.
    for (bool waits = false; !waits;) {
      const std::lock_guard<std::mutex> lock(mutex_);
      waits = waits_;
    }
  }
  ~Waiter() { SetWallClock(0); }

  void Come() {
    const std::lock_guard<std::mutex> lock(mutex_);
    came_ = true;
    changed_.notify_all();
  }
  bool Held() {
    thread_.join();
    return holds_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool waits_ = false, came_ = false, holds_ = false;
  std::thread thread_;
};

TEST(SteadyWaitTest, ItEndsWithWhatIsWaitedFor) {
  for (const absl::Duration limit : {absl::Hours(1), absl::InfiniteDuration()}) {
    Waiter waiter(limit);
    waiter.Come();
    EXPECT_TRUE(waiter.Held());
  }
}

TEST(SteadyWaitTest, WithoutTimeItDoesNotWait) {
  EXPECT_FALSE(Waiter(absl::ZeroDuration()).Held());
  EXPECT_FALSE(Waiter(-absl::InfiniteDuration()).Held());
}

TEST(SteadyWaitTest, AClockThatIsSetBackDoesNotMakeItLonger) {
  Waiter waiter(absl::Milliseconds(20));
  SetWallClock(-5 * kHour);
  EXPECT_FALSE(waiter.Held());
}

TEST(SteadyWaitTest, AClockThatIsSetForwardDoesNotEndIt) {
  Waiter waiter(absl::Hours(1));
  // One of Abseil's waits shows when a wait by the wall clock ends.
  std::atomic<bool> ended{false};
  std::thread by_wall_clock([&ended] {
    absl::Notification().WaitForNotificationWithTimeout(absl::Hours(1));
    ended = true;
  });
  for (long setting = 5 * kHour; !ended; setting += 5 * kHour) {
    SetWallClock(setting);
    absl::SleepFor(absl::Milliseconds(1));
  }
  by_wall_clock.join();
  waiter.Come();
  EXPECT_TRUE(waiter.Held());
}

}  // namespace
}  // namespace cadre
