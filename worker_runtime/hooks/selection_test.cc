#include "worker_runtime/hooks/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// By the definition: sorted by magnitude, the first ones first where they are equal.
std::vector<int32_t> BySorting(const std::vector<float>& values, size_t count) {
  std::vector<int32_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::stable_sort(indices.begin(), indices.end(), [&](int32_t a, int32_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  indices.resize(std::min(count, indices.size()));
  std::sort(indices.begin(), indices.end());
  return indices;
}

TEST(LargestElements, AreThoseThatSortingFinds) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const size_t size : {1u, 2u, 7u, 100u, 5000u}) {
    for (const float grain : {0.0f, 0.5f}) {
      std::vector<float> values(size);
      for (float& value : values) {
        value = normal(random);
        // Many that are equal.
        if (grain > 0) value = std::round(value / grain) * grain;
      }
      for (const size_t count : {size_t{1}, size / 20 + 1, size / 2 + 1, size, size + 3}) {
        EXPECT_EQ(LargestElements(values, count), BySorting(values, count))
            << count << " of " << size;
      }
    }
  }
}

TEST(LargestElements, TakesExactlyAsManyZerosAsAreAskedFor) {
  EXPECT_THAT(LargestElements({0, -0.0f, 0, 3}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(LargestElements({1, 2}, 0), IsEmpty());
  EXPECT_THAT(LargestElements({}, 5), IsEmpty());
}

TEST(LargestElements, NanComesBeforeInfinity) {
  EXPECT_THAT(LargestElements({1, -kInfinity, 1e30f, kNan}, 1), ElementsAre(3));
  EXPECT_THAT(LargestElements({1, -kInfinity, 1e30f, kNan}, 2), ElementsAre(1, 3));
}

TEST(ElementsFrom, IncludesTheMagnitudeItself) {
  EXPECT_THAT(ElementsFrom({0.5f, -0.5f, 0.49f, -0.49f, 2}, 0.5f), ElementsAre(0, 1, 4));
  EXPECT_THAT(ElementsFrom({kNan, 0, -kInfinity}, 0.5f), ElementsAre(0, 2));
  EXPECT_THAT(ElementsFrom({}, 0.5f), IsEmpty());
}

}  // namespace
}  // namespace cadre::hooks
