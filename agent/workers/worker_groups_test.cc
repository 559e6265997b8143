#include "agent/workers/worker_groups.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

uint64_t Start(WorkerGroups& groups, uint32_t local_rank) {
  const uint64_t group = groups.Take();
  groups.Add(group, local_rank);
  return group;
}

TEST(WorkerGroupsTest, AGenerationIsStopped_OnceAllAreGone) {
  WorkerGroups groups;
  groups.Begin({});
  const uint64_t zero = Start(groups, 0), one = Start(groups, 1);
  EXPECT_EQ(one, zero + 1);
  EXPECT_EQ(groups.LocalRank(one), 1u);
  EXPECT_FALSE(groups.Stopped());
  EXPECT_THAT(groups.Stop({}), ElementsAre(zero, one));
  groups.Gone(one);
  EXPECT_FALSE(groups.Stopped());
  groups.Gone(zero);
  EXPECT_TRUE(groups.Stopped());
  groups.Begin({});
  EXPECT_FALSE(groups.LocalRank(zero).has_value());
}

TEST(WorkerGroupsTest, WhatNeverStarted_IsStopped) {
  WorkerGroups groups;
  groups.Begin({});
  EXPECT_THAT(groups.Stop({}), IsEmpty());
  EXPECT_TRUE(groups.Stopped());
}

TEST(WorkerGroupsTest, KeptWorkersGoOn_AndEndAlone) {
  WorkerGroups groups;
  groups.Begin({});
  const uint64_t zero = Start(groups, 0), one = Start(groups, 1), two = Start(groups, 2);
  EXPECT_THAT(groups.Stop({0, 1}), ElementsAre(two));
  EXPECT_FALSE(groups.Stopped());
  groups.Gone(two);
  EXPECT_TRUE(groups.Stopped());
  // One of them is not kept after all.
  EXPECT_THAT(groups.Stop({0}), ElementsAre(one));
  EXPECT_FALSE(groups.Stopped());
  // The next generation does not wait until it is gone.
  groups.Begin({0});
  EXPECT_THAT(groups.all(), ElementsAre(testing::Pair(zero, 0u)));
  EXPECT_NE(Start(groups, 1), one);
  EXPECT_FALSE(groups.LocalRank(one).has_value());
  EXPECT_THAT(groups.Stop({}), SizeIs(2));
}

TEST(WorkerGroupsTest, NoNumberIsUsedAgain_AlsoAfterAnotherAgents) {
  WorkerGroups groups;
  groups.Begin({});
  groups.Add(7, 0);
  groups.Add(8, 1);
  EXPECT_EQ(groups.next(), 9u);
  EXPECT_EQ(groups.Take(), 9u);
  groups.AllGone();
  EXPECT_EQ(groups.Take(), 10u);
}

}  // namespace
}  // namespace cadre::agent
