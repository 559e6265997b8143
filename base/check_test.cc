#include "base/check.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(CheckTest, WhatHoldsGoesOn) {
  int evaluated = 0;
  CADRE_CHECK(++evaluated == 1, "never shown");
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, WhatDoesNotHoldEndsTheProgramAndSaysWhere) {
  const int rank = 4;
  EXPECT_DEATH(CADRE_CHECK(rank < 4, "rank ", rank, " of 4"),
               "check_test.cc:[0-9]+: check failed: rank < 4: rank 4 of 4");
}

}  // namespace
}  // namespace cadre
