#include "worker_runtime/memory/bounded_call.h"

#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"

namespace cadre::memory {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

TEST(BoundedCallTest, OneThatEndsInTimeIsAnswered) {
  BoundedCall calls(kLong);
  const auto answer = calls.Make([] { return Result<std::string>("answer"); });
  ASSERT_OK(answer);
  EXPECT_EQ(*answer, "answer");
  EXPECT_THAT(calls.Make([]() -> Result<std::string> { return NotFoundError("none"); }),
              StatusIs(StatusCode::kNotFound));
  EXPECT_FALSE(calls.is_late());
}

TEST(BoundedCallTest, OneThatHangsIsNotAwaited_NorThoseBehindItUntilOneEndsInTime) {
  absl::Notification back;
  // Longer than which only the one that hangs takes.
  BoundedCall calls(absl::Milliseconds(200));
  EXPECT_THAT(calls.Make([&]() -> Result<std::string> {
    EXPECT_TRUE(back.WaitForNotificationWithTimeout(kLong));
    return std::string("late");
  }),
              StatusIs(StatusCode::kDeadlineExceeded));
  bool is_called = false;
  const auto call = [&]() -> Result<std::string> {
    is_called = true;
    return std::string("again");
  };
  EXPECT_THAT(calls.Make(call), StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(is_called);
  EXPECT_TRUE(calls.is_late());
  back.Notify();
  Result<std::string> answer = calls.Make(call);
  for (const absl::Time until = absl::Now() + kLong; !answer.ok() && absl::Now() < until;) {
    answer = calls.Make(call);
  }
  ASSERT_OK(answer);
  EXPECT_EQ(*answer, "again");
  EXPECT_FALSE(calls.is_late());
}

}  // namespace
}  // namespace cadre::memory
