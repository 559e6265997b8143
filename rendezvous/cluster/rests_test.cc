#include "rendezvous/cluster/rests.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

TEST(RestsTest, ANodeRestsForOneJobAndForLongerEachTime) {
  Rests rests;
  EXPECT_EQ(rests.NextDeadline(), MonoTime::Never());
  EXPECT_FALSE(rests.EndDue(Second(1000)));
  const int seconds[] = {1, 2, 4, 8, 16, 32, 60, 60};
  for (uint32_t failed = 1; failed <= 8; ++failed) {
    rests.Add(7, "n0", failed, Second(100));
    rests.Add(8, "n1", 1000, Second(100));
    EXPECT_THAT(rests.ByJob()[7], ElementsAre("n0"));
    EXPECT_THAT(rests.ByJob()[8], ElementsAre("n1"));
    const MonoTime end = Second(100 + seconds[failed - 1]);
    EXPECT_EQ(rests.NextDeadline(), end);
    EXPECT_FALSE(rests.EndDue(end + -absl::Microseconds(1)));
    EXPECT_TRUE(rests.EndDue(end));
    EXPECT_THAT(rests.ByJob()[7], IsEmpty());
    rests.EndDue(Second(200));
  }
}

}  // namespace
}  // namespace cadre::cluster
