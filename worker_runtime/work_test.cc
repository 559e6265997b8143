#include "cadre/work.h"

#include <chrono>
#include <thread>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(WorkTest, IsNotDoneAtFirst) {
  Work work;
  EXPECT_FALSE(work.done());
  EXPECT_EQ(work.duration(), std::chrono::nanoseconds(0));
  EXPECT_THAT(work.Wait(std::chrono::nanoseconds(0)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("not done within 0")));
}

TEST(WorkTest, WaitReturnsWhatTheCommunicatorSaid) {
  Work work;
  std::thread communicator(
      [&work] { work.Complete(AbortedError("moved on"), std::chrono::seconds(2)); });
  EXPECT_THAT(work.Wait(std::chrono::minutes(1)), StatusIs(StatusCode::kAborted, "moved on"));
  communicator.join();
  EXPECT_TRUE(work.done());
  EXPECT_EQ(work.duration(), std::chrono::seconds(2));
}

TEST(WorkTest, ManyMayWait) {
  Work work;
  std::thread first([&work] { EXPECT_OK(work.Wait(std::chrono::minutes(1))); });
  std::thread second([&work] { EXPECT_OK(work.Wait(std::chrono::minutes(1))); });
  work.Complete(OkStatus(), std::chrono::nanoseconds(0));
  first.join();
  second.join();
}

}  // namespace

}  // namespace cadre
