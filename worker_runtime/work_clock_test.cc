// A work's deadline while the wall clock is set.
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "tests/testing/wall_clock.h"
#include "worker_runtime/work.h"

namespace cadre {
namespace {

TEST(WorkClockTest, AClockThatIsSetBackDoesNotMoveTheDeadline) {
  Work work;
  std::atomic<bool> over{false};
  std::thread waits([&] {
    EXPECT_THAT(work.Wait(absl::Milliseconds(20)), StatusIs(absl::StatusCode::kDeadlineExceeded));
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
