#include "tests/soak/census.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GrowingTest, ALeakWithEachLook) {
  EXPECT_THAT(Growing({{"descriptors", 0, 2, {20, 21, 22, 23, 24, 25, 26, 27, 28}}}),
              ElementsAre("descriptors grew from at most 22 to at least 26"));
}

TEST(GrowingTest, NoiseAndSlackAreNoLeak) {
  EXPECT_THAT(Growing({{"noise", 0, 0, {20, 24, 20, 22, 20, 24, 21, 24, 25}},
                       {"slack", 0, 2, {20, 20, 20, 21, 21, 21, 22, 22, 22}},
                       {"part", 0.1, 0, {100, 100, 100, 110, 110, 110, 110, 110, 110}},
                       {"falls", 0, 0, {30, 29, 28, 27, 26, 25, 24, 23, 22}}}),
              IsEmpty());
}

TEST(GrowingTest, TooFewLooksSayNothing) {
  EXPECT_THAT(Growing({{"few", 0, 0, {1, 2, 3, 4, 5, 6, 7, 8}}}), IsEmpty());
}

}  // namespace
}  // namespace cadre
