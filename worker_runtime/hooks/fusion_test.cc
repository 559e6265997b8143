#include "cadre/hooks/fusion.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FusionGroups, ClosesAGroupThatExceedsTheThreshold) {
  // 4 + 5 is not more than 9; with 1 it is.
  EXPECT_THAT(FusionGroups({4, 5, 1, 2}, {0, 1, 2, 3}, 9),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
}

TEST(FusionGroups, LargeTensorsAreAloneAndDoNotCloseTheOpenGroup) {
  EXPECT_THAT(FusionGroups({1, 10, 2, 9}, {0, 1, 2, 3}, 9),
              ElementsAre(ElementsAre(1), ElementsAre(0, 2, 3)));
}

TEST(FusionGroups, FollowsTheOrder) {
  EXPECT_THAT(FusionGroups({1, 1, 1}, {2, 1, 0}, 1),
              ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_THAT(FusionGroups({1, 0, 1}, {0, 1, 2}, 0),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1)));
  EXPECT_THAT(FusionGroups({}, {}, 9), IsEmpty());
}

TEST(FusionGroups, TheThresholdIsSingas) { EXPECT_EQ(kFusionThreshold, 2097152u); }

}  // namespace
}  // namespace cadre::hooks
