#include "rendezvous/state/jobs_by_user.h"

#include "gtest/gtest.h"

namespace cadre::state {
namespace {

TEST(JobsByUserTest, LiveJobsAreCounted) {
  JobsByUser jobs;
  EXPECT_EQ(jobs.Live("ann"), 0u);
  jobs.Add("ann", 0);
  jobs.Add("ann", 0);
  jobs.Add("bob", 0);
  jobs.Add("ann", 7);
  EXPECT_EQ(jobs.Live("ann"), 2u);
  jobs.Remove("ann", 0);
  EXPECT_EQ(jobs.Live("ann"), 1u);
  EXPECT_EQ(jobs.Live("bob"), 1u);
}

TEST(JobsByUserTest, TheOldestOfWhoHasMostIsForgotten) {
  JobsByUser jobs;
  EXPECT_EQ(jobs.NextToForget(), 0u);
  jobs.Add("ann", 1);
  jobs.Add("bob", 2);
  jobs.Add("bob", 3);
  EXPECT_EQ(jobs.NextToForget(), 2u);
  jobs.Remove("bob", 2);
  // Both have one.
  EXPECT_EQ(jobs.NextToForget(), 1u);
  jobs.Remove("ann", 1);
  EXPECT_EQ(jobs.NextToForget(), 3u);
  jobs.Remove("bob", 3);
  EXPECT_EQ(jobs.NextToForget(), 0u);
}

}  // namespace
}  // namespace cadre::state
