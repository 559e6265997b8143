#include "agent/workers/worker_units.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WorkerUnitsTest, AGenerationIsStoppedAsOne) {
  WorkerUnits units;
  units.Begin(3, /*each_alone=*/false, {});
  EXPECT_EQ(units.Add(0), 3u);
  EXPECT_EQ(units.Add(1), 3u);
  EXPECT_FALSE(units.Stopped());
  EXPECT_THAT(units.Stop({}), ElementsAre(3));
  EXPECT_FALSE(units.Stopped());
  units.Gone(3);
  EXPECT_TRUE(units.Stopped());
  units.Begin(4, false, {});
  EXPECT_FALSE(units.Has(3));
}

TEST(WorkerUnitsTest, WhatNeverStarted_IsStopped) {
  WorkerUnits units;
  units.Begin(3, /*each_alone=*/true, {});
  EXPECT_THAT(units.Stop({}), IsEmpty());
  EXPECT_TRUE(units.Stopped());
}

TEST(WorkerUnitsTest, KeptWorkersGoOn_AndEndAlone) {
  WorkerUnits units;
  units.Begin(1, /*each_alone=*/true, {});
  const uint64_t zero = units.Add(0), one = units.Add(1), two = units.Add(2);
  EXPECT_THAT(units.Stop({0, 1}), ElementsAre(two));
  EXPECT_FALSE(units.Stopped());
  units.Gone(two);
  EXPECT_TRUE(units.Stopped());
  // One of them is not kept after all.
  EXPECT_THAT(units.Stop({0}), ElementsAre(one));
  EXPECT_FALSE(units.Stopped());
  // The next generation does not wait for its end.
  units.Begin(2, true, {0});
  EXPECT_THAT(units.All(), ElementsAre(zero));
  EXPECT_NE(units.Add(1), one);
  EXPECT_FALSE(units.Has(one));
  EXPECT_THAT(units.Stop({}), testing::SizeIs(2));
}

TEST(WorkerUnitsTest, AProcessThatStandsBy_IsOfNoGenerationUntilItTakesAPlace) {
  WorkerUnits units;
  units.Begin(1, /*each_alone=*/true, {});
  const uint64_t zero = units.Add(0);
  const uint64_t standby = units.AddStandby();
  EXPECT_FALSE(units.Has(standby));
  EXPECT_THAT(units.Stop({}), ElementsAre(zero));
  units.Gone(zero);
  EXPECT_TRUE(units.Stopped());
  units.Begin(2, true, {});
  units.PlaceStandby(standby, 3);
  EXPECT_TRUE(units.Has(standby));
  EXPECT_EQ(units.LocalRank(standby, 0), 3u);
  EXPECT_THAT(units.Stop({}), ElementsAre(standby));
  // Where a generation is stopped as one, those that stood by are stopped with it.
  units.Begin(3, /*each_alone=*/false, {});
  EXPECT_FALSE(units.Has(standby));
  EXPECT_EQ(units.Add(0), 3u);
  const uint64_t other = units.AddStandby();
  EXPECT_NE(other, standby);
  units.PlaceStandby(other, 1);
  EXPECT_EQ(units.LocalRank(3, 0), 0u);
  EXPECT_THAT(units.Stop({}), testing::UnorderedElementsAre(3, other));
  units.Gone(3);
  EXPECT_FALSE(units.Stopped());
  units.Gone(other);
  EXPECT_TRUE(units.Stopped());
}

}  // namespace
}  // namespace cadre
