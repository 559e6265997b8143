#include "worker_runtime/hooks/low_rank.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::hooks {
namespace {

TEST(CompressibleShape, TakesMatricesThatGetSmallEnough) {
  const auto shape = CompressibleShape({10, 3, 4}, 1, 2);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->rows, 10u);
  EXPECT_EQ(shape->columns, 12u);
  EXPECT_EQ(shape->rank, 1u);
  EXPECT_FALSE(CompressibleShape({120}, 1, 2)) << "vectors stay whole";
  EXPECT_FALSE(CompressibleShape({}, 1, 2));
  // (4 + 4) * 1 * 2 is not less than 16.
  EXPECT_FALSE(CompressibleShape({4, 4}, 1, 2));
  EXPECT_TRUE(CompressibleShape({4, 5}, 1, 2));
  EXPECT_FALSE(CompressibleShape({10, 12}, 3, 2));
  EXPECT_FALSE(CompressibleShape({1, 1000}, 1, 2));
  EXPECT_FALSE(CompressibleShape({0, 5}, 1, 2));
}

TEST(LowRank, MultipliesAsWrittenDown) {
  const MatrixShape shape{2, 3, 2};
  const std::vector<float> m = {1, 2, 3, 4, 5, 6};
  const std::vector<float> q = {1, 0, 0, 1, 2, -1};
  std::vector<float> p(4), back(6), q2(6);
  MultiplyByQ(shape, m.data(), q.data(), p.data());
  EXPECT_EQ(p, (std::vector<float>{7, -1, 16, -1}));
  MultiplyByP(shape, m.data(), p.data(), q2.data());
  EXPECT_EQ(q2, (std::vector<float>{71, -5, 94, -7, 117, -9}));
  Recompose(shape, p.data(), q.data(), back.data());
  EXPECT_EQ(back, (std::vector<float>{7, -1, 15, 16, -1, 33}));
}

TEST(Orthogonalize, MakesColumnsOrthonormal) {
  std::vector<float> matrix(30 * 4);
  FillRandom(1, 2, 3, MakeSpan(matrix));
  Orthogonalize(matrix.data(), 30, 4, 0);
  for (size_t a = 0; a < 4; ++a) {
    for (size_t b = 0; b < 4; ++b) {
      double product = 0;
      for (size_t i = 0; i < 30; ++i) product += matrix[i * 4 + a] * matrix[i * 4 + b];
      EXPECT_NEAR(product, a == b ? 1 : 0, 1e-5) << a << " " << b;
    }
  }
}

TEST(Orthogonalize, LeavesZeroColumnsAndAddsEpsilon) {
  std::vector<float> matrix = {0, 3, 0, 4};
  Orthogonalize(matrix.data(), 2, 2, 0);
  EXPECT_EQ(matrix, (std::vector<float>{0, 0.6f, 0, 0.8f}));
  std::vector<float> column = {3, 4};
  Orthogonalize(column.data(), 2, 1, 5);
  EXPECT_EQ(column, (std::vector<float>{0.3f, 0.4f}));
}

TEST(FillRandom, IsNormalAndDependsOnEachArgument) {
  std::vector<float> values(10000), same(10000);
  FillRandom(1, 2, 3, MakeSpan(values));
  FillRandom(1, 2, 3, MakeSpan(same));
  EXPECT_EQ(values, same);
  double sum = 0, square = 0;
  for (const float value : values) {
    sum += value;
    square += value * value;
  }
  EXPECT_NEAR(sum / 10000, 0, 0.05);
  EXPECT_NEAR(square / 10000, 1, 0.05);
  for (const auto& other : {std::vector<uint64_t>{0, 2, 3}, {1, 0, 3}, {1, 2, 0}}) {
    FillRandom(other[0], other[1], other[2], MakeSpan(same));
    EXPECT_NE(values, same);
  }
}

}  // namespace
}  // namespace cadre::hooks
