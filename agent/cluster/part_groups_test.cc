#include "agent/cluster/part_groups.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

TEST(PartGroupsTest, EachPartHasAGroupOfItsOwn_WhichIsNotUsedAgain) {
  PartGroups groups;
  const uint64_t first = groups.Add(700);
  const uint64_t second = groups.Add(12);
  EXPECT_NE(first, second);
  EXPECT_EQ(groups.GroupOf(700), first);
  EXPECT_EQ(groups.PartOf(second), 12u);
  groups.Remove(700);
  EXPECT_FALSE(groups.GroupOf(700).has_value());
  EXPECT_FALSE(groups.PartOf(first).has_value());
  const uint64_t again = groups.Add(700);
  EXPECT_NE(again, first);
  EXPECT_NE(again, second);
  EXPECT_EQ(groups.PartOf(again), 700u);
}

}  // namespace
}  // namespace cadre::agent
