#include "precision.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/version.h"

namespace cadre::transformer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PrecisionTest, TypesHaveNames) {
  EXPECT_EQ(*TypeNamed("float32"), torch::kFloat32);
  EXPECT_EQ(*TypeNamed("bfloat16"), torch::kBFloat16);
  EXPECT_EQ(*TypeNamed("float16"), torch::kFloat16);
  EXPECT_THAT(TypeNamed("int8"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("int8")));
}

TEST(PrecisionTest, OperatorsComputeInItAndTheResultIsFloat32) {
  const torch::Tensor ones = torch::ones({2, 2});
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    torch::ScalarType within = torch::kInt;
    const torch::Tensor given = ForwardIn(type, torch::kCPU, [&] {
      const torch::Tensor product = torch::matmul(ones, ones);
      within = product.scalar_type();
      return product;
    });
    EXPECT_EQ(within, type);
    EXPECT_EQ(given.scalar_type(), torch::kFloat32);
  }
  EXPECT_EQ(torch::matmul(ones, ones).scalar_type(), torch::kFloat32);
}

TEST(PrecisionTest, WhatTheModelCannotBeTrainedInIsNamed) {
  EXPECT_OK(CheckTrains(torch::kCPU, torch::kFloat32));
  EXPECT_OK(CheckTrains(torch::kCPU, torch::kBFloat16));
  const Status half = CheckTrains(torch::kCPU, torch::kFloat16);
  if (TORCH_VERSION_MAJOR < 2) {
    EXPECT_THAT(half, StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("--precision float16: libtorch 1."),
                                     HasSubstr("cannot train the model in it on cpu ("))));
  } else {
    EXPECT_OK(half);
  }
}

}  // namespace
}  // namespace cadre::transformer
