#include "agent/evidence/progress_lines.h"

#include <cmath>

#include "gtest/gtest.h"
#include "rpc/figures.h"

namespace cadre::agent {
namespace {

TEST(ParseProgressLine, AllNames_AnyOrder_AreTaken) {
  const auto progress = ParseProgressLine("loss=0.125 step=120 samples_per_second=3400.5");
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress.step(), 120u);
  EXPECT_EQ(progress->progress.samples_per_second(), 3400.5);
  EXPECT_EQ(progress->progress.loss(), 0.125);
}

TEST(ParseProgressLine, FiguresOfTheProgramsOwn) {
  const auto progress = ParseProgressLine("step=7 total=90 lr=3e-4 eval/acc=0.5 9x=1 a-b=1 note=x");
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress.total(), 90u);
  ASSERT_EQ(progress->progress.figures_size(), 2);
  EXPECT_EQ(progress->progress.figures(0).name(), "lr");
  EXPECT_EQ(progress->progress.figures(0).value(), 3e-4);
  EXPECT_EQ(progress->progress.figures(1).name(), "eval/acc");
  std::string many;
  for (int i = 0; i < 100; ++i) many += "m" + std::to_string(i) + "=1 ";
  EXPECT_EQ(ParseProgressLine(many)->progress.figures_size(), rpc::kMaxFigures);
}

TEST(ParseProgressLine, WhatIsNoNumber_IsLeftOut) {
  const auto progress = ParseProgressLine("step=7 note=a=b\r");
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress.step(), 7u);
  EXPECT_TRUE(progress->has_step);
}

TEST(ParseProgressLine, NothingKnown_GivesNothing) {
  for (const char* line :
       {"", "   ", "hello world", "step=", "step=-1", "step=1x", "=5", "samples_per_second=inf"}) {
    EXPECT_FALSE(ParseProgressLine(line).has_value()) << line;
  }
}

TEST(ParseProgressLine, LossThatIsNoNumber_IsShown) {
  const auto progress = ParseProgressLine("loss=nan");
  ASSERT_TRUE(progress.has_value());
  EXPECT_TRUE(std::isnan(progress->progress.loss()));
  EXPECT_FALSE(progress->has_step);
}

}  // namespace
}  // namespace cadre::agent
