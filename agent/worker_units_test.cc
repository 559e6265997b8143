#include "agent/worker_units.h"

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

}  // namespace
}  // namespace cadre
