#include "worker_runtime/reduce/element_scaling.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

float ThroughBrain(float value) {
  uint16_t bits;
  NarrowFromFloat(DataType::kBfloat16, &value, 1, &bits);
  float back;
  WidenToFloat(DataType::kBfloat16, &bits, 1, &back);
  return back;
}

TEST(ElementScalingTest, EveryBfloat16SurvivesBeingWidened) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t before = static_cast<uint16_t>(bits);
    float wide;
    uint16_t after;
    WidenToFloat(DataType::kBfloat16, &before, 1, &wide);
    NarrowFromFloat(DataType::kBfloat16, &wide, 1, &after);
    if (std::isnan(wide)) {
      EXPECT_EQ(after & 0x7f80, 0x7f80);
      EXPECT_NE(after & 0x7f, 0);
    } else {
      EXPECT_EQ(after, before);
    }
  }
}

TEST(ElementScalingTest, Bfloat16RoundsToTheNearestAndTiesToEven) {
  // Between 1 and 2 the format counts in steps of 2^-7.
  EXPECT_EQ(ThroughBrain(1 + 1.0f / 256), 1);
  EXPECT_EQ(ThroughBrain(1 + 3.0f / 256), 1 + 4.0f / 256);
  EXPECT_EQ(ThroughBrain(1 + 1.1f / 256), 1 + 2.0f / 256);
  EXPECT_EQ(ThroughBrain(std::numeric_limits<float>::max()),
            std::numeric_limits<float>::infinity());
}

TEST(ElementScalingTest, EveryFloat16SurvivesBeingWidened) {
  std::vector<uint16_t> before;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool is_nan = (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0;
    if (!is_nan) before.push_back(static_cast<uint16_t>(bits));
  }
  std::vector<float> wide(before.size());
  std::vector<uint16_t> after(before.size());
  WidenToFloat(DataType::kFloat16, before.data(), before.size(), wide.data());
  NarrowFromFloat(DataType::kFloat16, wide.data(), wide.size(), after.data());
  EXPECT_EQ(before, after);
  EXPECT_EQ(wide[1], std::ldexp(1.0f, -24));
}

TEST(ElementScalingTest, MultipliesEveryElement) {
  std::vector<double> doubles(1025, 3);
  MultiplyInPlace({doubles.data(), doubles.size(), DataType::kFloat64}, 0.5);
  EXPECT_THAT(doubles, ::testing::Each(1.5));
  std::vector<uint16_t> halves(2049, 0x4200);  // 3
  MultiplyInPlace({halves.data(), halves.size(), DataType::kFloat16}, 0.5);
  EXPECT_THAT(halves, ::testing::Each(0x3e00));  // 1.5
  std::vector<int32_t> integers(3, 7);
  MultiplyInPlace({integers.data(), integers.size(), DataType::kInt32}, 1);
  EXPECT_THAT(integers, ::testing::Each(7));
}

}  // namespace
}  // namespace cadre::reduce
