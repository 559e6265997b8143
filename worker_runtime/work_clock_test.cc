// A work's deadline when the wall clock is changed.
#include <atomic>
#include <chrono>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "cadre/work.h"
#include "tests/testing/wall_clock.h"

namespace cadre {
namespace {

TEST(WorkClockTest, AClockThatIsSetBackDoesNotMoveTheDeadline) {
  Work work;
  std::atomic<bool> over{false};
  std::thread waits([&] {
    EXPECT_THAT(work.Wait(std::chrono::milliseconds(20)), StatusIs(StatusCode::kDeadlineExceeded));
    over = true;
  });
  for (long hours = 5; !over; hours += 5) {
    SetWallClock(-3600 * hours);
    absl::SleepFor(absl::Milliseconds(1));
  }
  waits.join();
  SetWallClock(0);
}

}  // namespace
}  // namespace cadre
