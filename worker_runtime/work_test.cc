#include "worker_runtime/work.h"

#include <thread>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(WorkTest, IsNotDoneAtFirst) {
  Work work;
  EXPECT_FALSE(work.done());
  EXPECT_EQ(work.duration(), absl::ZeroDuration());
  EXPECT_THAT(work.Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not done after 0")));
}

TEST(WorkTest, WaitReturnsWhatTheCommunicatorSaid) {
  Work work;
  std::thread communicator(
      [&work] { work.Complete(absl::AbortedError("moved on"), absl::Seconds(2)); });
  EXPECT_THAT(work.Wait(absl::Minutes(1)), StatusIs(absl::StatusCode::kAborted, "moved on"));
  communicator.join();
  EXPECT_TRUE(work.done());
  EXPECT_EQ(work.duration(), absl::Seconds(2));
}

TEST(WorkTest, ManyMayWait) {
  Work work;
  std::thread first([&work] { EXPECT_OK(work.Wait(absl::Minutes(1))); });
  std::thread second([&work] { EXPECT_OK(work.Wait(absl::Minutes(1))); });
  work.Complete(absl::OkStatus(), absl::ZeroDuration());
  first.join();
  second.join();
}

}  // namespace
}  // namespace cadre
