#include "worker_runtime/reduce/gradient_readiness.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientReadiness, AGradientBecomesReadyOnceInAStep) {
  GradientReadiness readiness(3, /*static_graph=*/false);
  for (int step = 0; step < 2; ++step) {
    readiness.BeginStep();
    EXPECT_FALSE(readiness.any());
    EXPECT_TRUE(readiness.Mark(2));
    EXPECT_TRUE(readiness.Mark(0));
    EXPECT_FALSE(readiness.MayMark(2));
    EXPECT_TRUE(readiness.MayMark(1));
    EXPECT_TRUE(readiness.IsComplete(0));
    EXPECT_FALSE(readiness.IsComplete(1));
    EXPECT_FALSE(readiness.IsMarked(1));
    EXPECT_THAT(readiness.order(), ElementsAre(2, 0));
    EXPECT_THAT(readiness.Missing(), ElementsAre(1));
    readiness.LearnGraph();  // there is none to learn
  }
}

TEST(GradientReadiness, WhatIsNotedIsInOrderBeforeItIsMarked) {
  GradientReadiness readiness(3, /*static_graph=*/false);
  for (int step = 0; step < 2; ++step) {
    readiness.BeginStep();
    readiness.Note(2);
    readiness.Note(1);
    EXPECT_FALSE(readiness.any());
    EXPECT_FALSE(readiness.IsMarked(2));
    EXPECT_TRUE(readiness.Mark(1));
    EXPECT_TRUE(readiness.Mark(0));
    EXPECT_TRUE(readiness.Mark(2));
    EXPECT_THAT(readiness.order(), ElementsAre(2, 1, 0));
  }
}

TEST(GradientReadiness, WithAStaticGraphTheFirstStepSaysHowOften) {
  GradientReadiness readiness(3, /*static_graph=*/true);
  readiness.BeginStep();
  EXPECT_FALSE(readiness.Mark(1));
  EXPECT_FALSE(readiness.Mark(0));
  EXPECT_FALSE(readiness.Mark(1)) << "nobody knows yet whether that was the last time";
  EXPECT_TRUE(readiness.MayMark(1));
  EXPECT_FALSE(readiness.IsComplete(1));
  EXPECT_THAT(readiness.order(), ElementsAre(1, 0));
  EXPECT_THAT(readiness.Missing(), IsEmpty());
  readiness.LearnGraph();
  readiness.BeginStep();
  EXPECT_FALSE(readiness.Mark(1));
  EXPECT_THAT(readiness.Missing(), ElementsAre(0, 1));
  EXPECT_TRUE(readiness.Mark(1));
  EXPECT_TRUE(readiness.Mark(0));
  EXPECT_FALSE(readiness.MayMark(1));
  EXPECT_FALSE(readiness.MayMark(2)) << "it was not used in the first step";
  EXPECT_FALSE(readiness.IsComplete(2));
  EXPECT_THAT(readiness.Missing(), IsEmpty());
  readiness.LearnGraph();
  readiness.BeginStep();
  EXPECT_THAT(readiness.Missing(), ElementsAre(0, 1)) << "only the first step counts";
}

TEST(GradientReadiness, WhatWasAccumulatedCountsAsUsedUntilItIsForgotten) {
  GradientReadiness readiness(2, /*static_graph=*/false);
  readiness.Accumulate(1);
  readiness.BeginStep();
  EXPECT_FALSE(readiness.IsUsed(0));
  EXPECT_TRUE(readiness.IsUsed(1));
  EXPECT_FALSE(readiness.IsMarked(1));
  readiness.Mark(0);
  EXPECT_TRUE(readiness.IsUsed(0));
  readiness.ForgetAccumulated();
  EXPECT_FALSE(readiness.IsUsed(1));
}

}  // namespace
}  // namespace cadre::reduce
