#include "base/threads/repeating_thread.h"

#include <atomic>

#include "absl/synchronization/blocking_counter.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(RepeatingThread, CallsAgainAndAgain) {
  absl::BlockingCounter calls(3);
  std::atomic<int> left = 3;
  const RepeatingThread thread(std::chrono::milliseconds(1), [&] {
    if (left > 0 && left-- > 0) calls.DecrementCount();
  });
  calls.Wait();
}

TEST(RepeatingThread, AnEndDoesNotWaitForTheInterval) {
  const RepeatingThread thread(std::chrono::hours(1), [] { FAIL() << "an hour cannot be over"; });
}

TEST(RepeatingThread, AnEndWaitsForTheCallThatIsUnderWay) {
  absl::BlockingCounter began(1);
  std::atomic<bool> begun = false, ended = false;
  {
    const RepeatingThread thread(std::chrono::milliseconds(1), [&] {
      if (begun.exchange(true)) return;
      began.DecrementCount();
      std::this_thread::yield();
      ended = true;
    });
    began.Wait();
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace cadre
