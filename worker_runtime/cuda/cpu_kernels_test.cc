#include "worker_runtime/cuda/cpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/status_matchers.h"

namespace cadre::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// 1, -2, 0.5 and what is next to 1 in each type.
constexpr uint16_t kHalves[] = {0x3c00, 0xc000, 0x3800, 0x3c01};
constexpr uint16_t kBrains[] = {0x3f80, 0xc000, 0x3f00, 0x3f81};

template <typename T>
Buffer Of(std::vector<T>& values, DataType type) {
  return {values.data(), values.size(), type};
}
Buffer Of(std::vector<float>& values) { return Of(values, DataType::kFloat32); }

struct Selected {
  explicit Selected(size_t capacity) : indices(capacity, 99), values(capacity, 99) {}
  Selection selection() { return {indices.data(), values.data(), indices.size(), &found}; }

  std::vector<uint32_t> indices;
  std::vector<float> values;
  uint64_t found = 99;
};

TEST(ConvertOnCpuTest, KnowsItsTypes) {
  std::vector<float> values = {1, -2, 0.5, 1 + 0x1p-10f};
  std::vector<uint16_t> halves(4), brains(4);
  ASSERT_OK(ConvertOnCpu(Of(values), Of(halves, DataType::kFloat16), 1));
  EXPECT_THAT(halves, ::testing::ElementsAreArray(kHalves));
  values[3] = 1 + 0x1p-7f;
  ASSERT_OK(ConvertOnCpu(Of(values), Of(brains, DataType::kBfloat16), 1));
  EXPECT_THAT(brains, ::testing::ElementsAreArray(kBrains));
  std::vector<float> back(4);
  ASSERT_OK(ConvertOnCpu(Of(halves, DataType::kFloat16), Of(back), 2));
  EXPECT_THAT(back, ElementsAre(2, -4, 1, 2 + 0x1p-9f));
  ASSERT_OK(ConvertOnCpu(Of(halves, DataType::kFloat16), Of(brains, DataType::kBfloat16), 1));
  EXPECT_EQ(brains[3], kBrains[0]);
}

TEST(ConvertOnCpuTest, RoundsToEvenAndOverflowsToInfinity) {
  std::vector<float> values = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65519, 65520, -kInfinity, kNan};
  std::vector<uint16_t> halves(values.size());
  ASSERT_OK(ConvertOnCpu(Of(values), Of(halves, DataType::kFloat16), 1));
  EXPECT_EQ(halves[0], 0x3c00);
  EXPECT_EQ(halves[1], 0x3c02);
  EXPECT_EQ(halves[2], 0x7bff);
  EXPECT_EQ(halves[3], 0x7c00);
  EXPECT_EQ(halves[4], 0xfc00);
  EXPECT_GT(halves[5] & 0x7fff, 0x7c00);
}

TEST(ConvertOnCpuTest, ScalesInPlace) {
  std::vector<float> values(3000, 3);
  ASSERT_OK(ConvertOnCpu(Of(values), Of(values), 0.5));
  EXPECT_THAT(values, Each(1.5f));
}

TEST(ConvertOnCpuTest, RefusesWhatCannotBe) {
  std::vector<float> values(4);
  std::vector<uint16_t> halves(3);
  std::vector<int32_t> whole(4);
  EXPECT_THAT(ConvertOnCpu(Of(values), Of(halves, DataType::kFloat16), 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("4 elements into 3")));
  EXPECT_THAT(ConvertOnCpu(Of(values), Of(whole, DataType::kInt32), 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not int32")));
  EXPECT_THAT(ConvertOnCpu(Of(values), {values.data(), 4, DataType::kFloat16}, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("in place")));
  EXPECT_THAT(ConvertOnCpu({nullptr, 4}, Of(values), 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("points to nothing")));
}

TEST(PackOnCpuTest, GoesThereAndBack) {
  std::vector<float> first = {1, 2, 3}, second = {4, 5}, none;
  std::vector<uint16_t> bucket(7, 0x1234);
  const std::vector<BucketPart> parts = {{Of(first), 4}, {Of(second), 1}, {Of(none), 7}};
  ASSERT_OK(PackOnCpu(parts, Of(bucket, DataType::kFloat16), 0.5));
  // 2, 2.5, 0.5, 1, 1.5; what belongs to no part stays.
  EXPECT_THAT(bucket, ElementsAre(0x1234, 0x4000, 0x4100, 0x1234, 0x3800, 0x3c00, 0x3e00));
  ASSERT_OK(UnpackOnCpu(Of(bucket, DataType::kFloat16), parts, 4));
  EXPECT_THAT(first, ElementsAre(2, 4, 6));
  EXPECT_THAT(second, ElementsAre(8, 10));
}

TEST(PackOnCpuTest, RefusesPartsThatDoNotFit) {
  std::vector<float> bucket(4), part(3);
  std::vector<uint16_t> half(1);
  EXPECT_OK(PackOnCpu({}, Of(bucket), 1));
  EXPECT_THAT(PackOnCpu({{Of(part), 2}}, Of(bucket), 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("3 elements at 2")));
  EXPECT_THAT(PackOnCpu({{Of(part), ~size_t{0}}}, Of(bucket), 1),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(UnpackOnCpu(Of(bucket), {{Of(part), 0}, {Of(half, DataType::kFloat16), 3}}, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("float32 and float16")));
}

TEST(FirstNonFiniteOnCpuTest, FindsTheFirstOfEveryType) {
  uint64_t first = 0;
  std::vector<float> values = {0, -std::numeric_limits<float>::max(), 1, -kInfinity, kNan};
  ASSERT_OK(FirstNonFiniteOnCpu(Of(values), &first));
  EXPECT_EQ(first, 3u);
  values.resize(3);
  ASSERT_OK(FirstNonFiniteOnCpu(Of(values), &first));
  EXPECT_EQ(first, kAllFinite);
  // Largest, NaN: 0x7bff is finite as a half, 0x7c01 is not; for bfloat16 both are finite.
  std::vector<uint16_t> shorts = {0x7bff, 0x7c01, 0xff80};
  ASSERT_OK(FirstNonFiniteOnCpu(Of(shorts, DataType::kFloat16), &first));
  EXPECT_EQ(first, 1u);
  ASSERT_OK(FirstNonFiniteOnCpu(Of(shorts, DataType::kBfloat16), &first));
  EXPECT_EQ(first, 2u);
  ASSERT_OK(FirstNonFiniteOnCpu({nullptr, 0, DataType::kFloat32}, &first));
  EXPECT_EQ(first, kAllFinite);
}

TEST(SelectOnCpuTest, TopKTakesTheGreatestInOrderAndTheFirstOfEquals) {
  std::vector<float> values = {1, -3, 2, 3, -2, 2, 0};
  Selected four(4);
  ASSERT_OK(SelectTopKOnCpu(Of(values), 4, four.selection()));
  EXPECT_EQ(four.found, 4u);
  EXPECT_THAT(four.indices, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(four.values, ElementsAre(-3, 2, 3, -2));
  Selected none(1);
  ASSERT_OK(SelectTopKOnCpu(Of(values), 0, none.selection()));
  EXPECT_EQ(none.found, 0u);
  EXPECT_EQ(none.indices[0], 99u);
}

TEST(SelectOnCpuTest, TopKOfManyIsWhatSortingGives) {
  std::mt19937 random(7);
  for (const size_t count : {1, 2, 1000, 5003}) {
    std::vector<float> values(count);
    // Few different values, so that many are equal.
    for (float& value : values) value = static_cast<float>(random() % 101) - 50;
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::fabs(values[a]) > std::fabs(values[b]);
    });
    for (const size_t k : {size_t{1}, (count + 1) / 2, count}) {
      Selected selected(k);
      ASSERT_OK(SelectTopKOnCpu(Of(values), k, selected.selection()));
      std::vector<uint32_t> expected(order.begin(), order.begin() + static_cast<ptrdiff_t>(k));
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(selected.found, k);
      EXPECT_EQ(selected.indices, expected);
      for (size_t i = 0; i < k; ++i) EXPECT_EQ(selected.values[i], values[expected[i]]);
    }
  }
}

TEST(SelectOnCpuTest, ThresholdIsIncludedAndCountsWhatDoesNotFit) {
  std::vector<float> values = {0.5, -1, 0.99f, kNan, 1, -7};
  Selected all(6), few(2);
  ASSERT_OK(SelectThresholdOnCpu(Of(values), 1, all.selection()));
  EXPECT_EQ(all.found, 4u);
  EXPECT_THAT(all.indices, ElementsAre(1, 3, 4, 5, 99, 99));
  EXPECT_TRUE(std::isnan(all.values[1]));
  ASSERT_OK(SelectThresholdOnCpu(Of(values), 1, few.selection()));
  EXPECT_EQ(few.found, 4u);
  EXPECT_THAT(few.indices, ElementsAre(1, 3));
  ASSERT_OK(SelectThresholdOnCpu(Of(values), 0, all.selection()));
  EXPECT_EQ(all.found, 6u);
}

TEST(SelectOnCpuTest, RefusesWhatCannotBe) {
  std::vector<float> values(4);
  std::vector<uint16_t> halves(4);
  Selected selected(2);
  EXPECT_THAT(SelectTopKOnCpu(Of(values), 3, selected.selection()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("room for 2")));
  EXPECT_THAT(SelectTopKOnCpu({values.data(), 1}, 2, selected.selection()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("2 of 1")));
  EXPECT_THAT(SelectThresholdOnCpu(Of(values), -1, selected.selection()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no magnitude")));
  EXPECT_THAT(SelectThresholdOnCpu(Of(values), kNan, selected.selection()),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(SelectTopKOnCpu(Of(halves, DataType::kFloat16), 1, selected.selection()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not float16")));
  EXPECT_THAT(SelectTopKOnCpu({values.data(), kMaxSelectable + 1}, 1, selected.selection()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("2147483647")));
  EXPECT_THAT(SelectTopKOnCpu(Of(values), 1, {nullptr, nullptr, 2, &selected.found}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no memory")));
}

}  // namespace
}  // namespace cadre::cuda
