#include "worker_runtime/reduce/gradient_readiness.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientReadiness, AGradientBecomesReadyOnceInAStep) {
  GradientReadiness marks(3, /*static_graph=*/false);
  for (int step = 0; step < 2; ++step) {
    marks.BeginStep();
    EXPECT_FALSE(marks.any());
    EXPECT_TRUE(marks.Mark(2));
    EXPECT_TRUE(marks.Mark(0));
    EXPECT_FALSE(marks.MayMark(2));
    EXPECT_TRUE(marks.MayMark(1));
    EXPECT_TRUE(marks.IsComplete(0));
    EXPECT_FALSE(marks.IsComplete(1));
    EXPECT_FALSE(marks.IsMarked(1));
    EXPECT_THAT(marks.order(), ElementsAre(2, 0));
    EXPECT_THAT(marks.Missing(), ElementsAre(1));
    marks.LearnGraph();  // there is none to learn
  }
}

TEST(GradientReadiness, WithAStaticGraphTheFirstStepSaysHowOften) {
  GradientReadiness marks(3, /*static_graph=*/true);
  marks.BeginStep();
  EXPECT_FALSE(marks.Mark(1));
  EXPECT_FALSE(marks.Mark(0));
  EXPECT_FALSE(marks.Mark(1)) << "nobody knows yet whether that was the last time";
  EXPECT_TRUE(marks.MayMark(1));
  EXPECT_FALSE(marks.IsComplete(1));
  EXPECT_THAT(marks.order(), ElementsAre(1, 0));
  EXPECT_THAT(marks.Missing(), IsEmpty());
  marks.LearnGraph();
  marks.BeginStep();
  EXPECT_FALSE(marks.Mark(1));
  EXPECT_THAT(marks.Missing(), ElementsAre(0, 1));
  EXPECT_TRUE(marks.Mark(1));
  EXPECT_TRUE(marks.Mark(0));
  EXPECT_FALSE(marks.MayMark(1));
  EXPECT_FALSE(marks.MayMark(2)) << "it was not used in the first step";
  EXPECT_FALSE(marks.IsComplete(2));
  EXPECT_THAT(marks.Missing(), IsEmpty());
  marks.LearnGraph();
  marks.BeginStep();
  EXPECT_THAT(marks.Missing(), ElementsAre(0, 1)) << "only the first step counts";
}

TEST(GradientReadiness, WhatWasAccumulatedCountsAsUsedUntilItIsForgotten) {
  GradientReadiness marks(2, /*static_graph=*/false);
  marks.Accumulate(1);
  marks.BeginStep();
  EXPECT_FALSE(marks.IsUsed(0));
  EXPECT_TRUE(marks.IsUsed(1));
  EXPECT_FALSE(marks.IsMarked(1));
  marks.Mark(0);
  EXPECT_TRUE(marks.IsUsed(0));
  marks.ForgetAccumulated();
  EXPECT_FALSE(marks.IsUsed(1));
}

}  // namespace
}  // namespace cadre::reduce
