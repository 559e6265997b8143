#include "worker_runtime/shared_memory/segment_meeting.h"

#include <unistd.h>

#include <chrono>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::shared_memory {
namespace {

constexpr std::chrono::minutes kLong(1);

TEST(SegmentMeetingTest, EachMapsAllOthersAgainAndAgain) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& worker) {
    for (int time = 0; time < 2; ++time) {
      const Result<MappedSegments> mapped = MapSegments(worker, "world", 4096, kLong);
      ASSERT_OK(mapped);
      ASSERT_EQ(mapped->segments.size(), 3u);
      for (const auto& segment : mapped->segments) EXPECT_GE(segment->size(), 4096u);
      EXPECT_THAT(mapped->pids, ::testing::Each(getpid()));
    }
  });
}

// Also when no time is left to ask for the last one.
TEST(SegmentMeetingTest, WhoDoesNotComeIsTooLate) {
  testing::InProcessWorkers workers(2);
  for (const auto timeout : {std::chrono::milliseconds(0), std::chrono::milliseconds(20)}) {
    EXPECT_THAT(MapSegments(workers.worker(0), "world", 4096, timeout),
                StatusIs(StatusCode::kDeadlineExceeded,
                         ::testing::HasSubstr("\"world\": rank 1 did not come within ")));
  }
}

TEST(SegmentMeetingTest, EndsWithTheGeneration) {
  testing::InProcessWorkers workers(2);
  workers.EndGeneration();
  EXPECT_THAT(MapSegments(workers.worker(0), "world", 4096, kLong), StatusIs(StatusCode::kAborted));
}

}  // namespace
}  // namespace cadre::shared_memory
