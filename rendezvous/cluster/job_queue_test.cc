#include "rendezvous/cluster/job_queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

TEST(RestsTest, ANodeRestsForOneJobAndForLongerEachTime) {
  StartBackoffs backed_off;
  EXPECT_EQ(backed_off.NextDeadline(), MonoTime::Never());
  EXPECT_FALSE(backed_off.Expire(Second(1000)));
  const int seconds[] = {1, 2, 4, 8, 16, 32, 60, 60};
  for (uint32_t failed = 1; failed <= 8; ++failed) {
    backed_off.Add(7, "n0", failed, Second(100));
    backed_off.Add(8, "n1", 1000, Second(100));
    EXPECT_THAT(backed_off.ByJob()[7], ElementsAre("n0"));
    EXPECT_THAT(backed_off.ByJob()[8], ElementsAre("n1"));
    const MonoTime end = Second(100 + seconds[failed - 1]);
    EXPECT_EQ(backed_off.NextDeadline(), end);
    EXPECT_FALSE(backed_off.Expire(end + -absl::Microseconds(1)));
    EXPECT_TRUE(backed_off.Expire(end));
    EXPECT_THAT(backed_off.ByJob()[7], IsEmpty());
    backed_off.Expire(Second(200));
  }
}

}  // namespace

}  // namespace cadre::cluster
