// Tests changes of jobs, and what the server is asked for.
#include "launcher/slurm/job_change.h"

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

v1::JobStatus Job() {
  v1::JobStatus job;
  job.set_limit_us(absl::ToInt64Microseconds(absl::Hours(1)));
  job.mutable_placement()->add_nodes("n1");
  job.mutable_placement()->add_labels("a100");
  return job;
}

TEST(JobChangeTest, WhatIsAbsentStays) {
  JobChange change;
  EXPECT_TRUE(change.IsEmpty());
  change.held = true;
  EXPECT_FALSE(change.IsEmpty());
  const auto update = UpdateOf(change, Job());
  ASSERT_OK(update);
  EXPECT_TRUE(update->held());
  EXPECT_FALSE(update->has_priority() || update->has_limit() || update->has_begin_unix_ms() ||
               update->has_placement());
}

TEST(JobChangeTest, Limits) {
  const auto limit = [](absl::string_view text) {
    JobChange change;
    EXPECT_OK(SetLimit(text, &change));
    const auto update = UpdateOf(change, Job());
    EXPECT_OK(update);
    return update->limit().seconds();
  };
  EXPECT_EQ(limit("30"), 1800);
  EXPECT_EQ(limit("2:00:00"), 7200);
  EXPECT_EQ(limit("+30"), 5400);
  EXPECT_EQ(limit("-30"), 1800);
  EXPECT_EQ(limit("UNLIMITED"), 0);
  EXPECT_EQ(limit("-1"), 0);
  JobChange change;
  EXPECT_THAT(SetLimit("soon", &change), StatusIs(kInvalid, HasSubstr("expected a time")));
  EXPECT_THAT(SetLimit("+UNLIMITED", &change), StatusIs(kInvalid));
  ASSERT_OK(SetLimit("+30", &change));
  EXPECT_THAT(UpdateOf(change, v1::JobStatus()), StatusIs(kInvalid, HasSubstr("no time limit")));
  ASSERT_OK(SetLimit("-60", &change));
  EXPECT_THAT(UpdateOf(change, Job()), StatusIs(kInvalid, HasSubstr("nothing would be left")));
}

TEST(JobChangeTest, PrioritiesAndTimes) {
  JobChange change;
  ASSERT_OK(SetPriority("-7", &change));
  EXPECT_EQ(change.priority, -7);
  ASSERT_OK(SetNice("5", &change));
  EXPECT_EQ(change.priority, -5);
  EXPECT_THAT(SetPriority("1000001", &change), StatusIs(kInvalid));
  EXPECT_THAT(SetNice("x", &change), StatusIs(kInvalid));
  const absl::Time now = absl::FromUnixSeconds(1795953600);
  ASSERT_OK(SetBegin("now+1hour", now, absl::UTCTimeZone(), &change));
  EXPECT_EQ(UpdateOf(change, Job())->begin_unix_ms(), int64_t{1795957200000});
}

// The server takes all that is asked of nodes at once.
TEST(JobChangeTest, PlacementIsSentAsAWhole) {
  JobChange change;
  ASSERT_OK(SetExclude("n[7-8]", &change));
  auto update = UpdateOf(change, Job());
  ASSERT_OK(update);
  EXPECT_THAT(update->placement().nodes(), ElementsAre("n1"));
  EXPECT_THAT(update->placement().exclude(), ElementsAre("n7", "n8"));
  EXPECT_THAT(update->placement().labels(), ElementsAre("a100"));
  ASSERT_OK(SetNodes("", &change));
  ASSERT_OK(SetLabels("a|b", &change));
  update = UpdateOf(change, Job());
  ASSERT_OK(update);
  EXPECT_EQ(update->placement().nodes_size(), 0);
  EXPECT_THAT(update->placement().labels(), ElementsAre("a|b"));
  EXPECT_THAT(SetNodes("n[", &change), StatusIs(kInvalid));
}

}  // namespace
}  // namespace cadre::launcher
