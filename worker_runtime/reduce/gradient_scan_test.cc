#include "worker_runtime/reduce/gradient_scan.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

template <typename T>
class GradientScan : public ::testing::Test {
 public:
  static constexpr DataType kType =
      std::is_same_v<T, float> ? DataType::kFloat32 : DataType::kFloat64;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GradientScan, Types);

TYPED_TEST(GradientScan, FindsOneBadElementAnywhere) {
  using Limits = std::numeric_limits<TypeParam>;
  for (const size_t count : {size_t{1}, size_t{7}, size_t{64}, size_t{10000}}) {
    std::vector<TypeParam> values(count, -Limits::max());
    EXPECT_TRUE(IsFinite({values.data(), count, this->kType}));
    for (const TypeParam bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        values[at] = bad;
        EXPECT_FALSE(IsFinite({values.data(), count, this->kType})) << count << " " << at;
        values[at] = Limits::denorm_min();
      }
    }
  }
}

TYPED_TEST(GradientScan, CopiesAllOfIt) {
  std::vector<TypeParam> source(9001), target(9001);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<TypeParam>(i);
  EXPECT_TRUE(CopyAndCheckFinite({target.data(), target.size(), this->kType}, source.data()));
  EXPECT_EQ(target, source);
  source[9000] = std::numeric_limits<TypeParam>::infinity();
  EXPECT_FALSE(CopyAndCheckFinite({target.data(), target.size(), this->kType}, source.data()));
  EXPECT_EQ(target, source);
}

TYPED_TEST(GradientScan, LooksAtWhatIsInItsPlaceAlready) {
  std::vector<TypeParam> values(9001, 1);
  const Buffer place{values.data(), values.size(), this->kType};
  EXPECT_TRUE(CopyAndCheckFinite(place, values.data()));
  values[9000] = std::numeric_limits<TypeParam>::infinity();
  EXPECT_FALSE(CopyAndCheckFinite(place, values.data()));
}

TEST(GradientScanOfNothing, IsFinite) {
  EXPECT_TRUE(IsFinite({nullptr, 0, DataType::kFloat32}));
  std::vector<int64_t> integers(3, -1);
  EXPECT_TRUE(IsFinite({integers.data(), 3, DataType::kInt64}));
}

}  // namespace
}  // namespace cadre::reduce
