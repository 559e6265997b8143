#include "cadre/hooks/all_reduce.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/reducer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/hooks/hook_harness.h"

namespace cadre::hooks {
namespace {

using ::testing::HasSubstr;

const Shapes kShapes = {{3, 5}, {7}, {33}};
const std::vector<reduce::Bucket> kBuckets = {{2, 1}, {0}};

float ToHalf(float value) { return static_cast<float>(static_cast<_Float16>(value)); }

// Rounds to the nearest number with 8 significant bits, ties to even.
float ToBrain(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t below = bits & 0xffffu;
  bits &= 0xffff0000u;
  if (below > 0x8000u || (below == 0x8000u && (bits & 0x10000u) != 0)) bits += 0x10000u;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

using Rounding = float (*)(float);

// Casts, divides and sums, each rounded to 16 bits; for two ranks, so that the order does not
// matter.
void ExpectCastDividedSummed(const std::shared_ptr<CommunicationHook>& hook,
                             Communicator& communicator, Rounding round) {
  TestGradients gradients(kShapes, kBuckets);
  ASSERT_OK(hook->Layout(gradients.views()));
  for (int step = 1; step <= 3; ++step) {
    gradients.Fill(communicator.rank(), step);
    ASSERT_OK(ReduceAll(*hook, communicator, gradients));
    for (size_t p = 0; p < kShapes.size(); ++p) {
      const std::vector<float> ours = gradients.Get(p);
      for (size_t i = 0; i < ours.size(); ++i) {
        const float expected = round(round(round(GradientValue(0, step, p, i)) / 2) +
                                     round(round(GradientValue(1, step, p, i)) / 2));
        ASSERT_EQ(ours[i], expected) << "step " << step << ", parameter " << p << ", " << i;
      }
    }
  }
  EXPECT_EQ(hook->bytes_given(), 3u * (15 + 7 + 33) * 2);
}

TEST(SixteenBit, Fp16_TwoRanks_IsCastDividedAndSummedInHalf) {
  WithRanks(2, [](Communicator& communicator) {
    ExpectCastDividedSummed(Fp16Hook(), communicator, ToHalf);
  });
}

TEST(SixteenBit, Bf16_TwoRanks_IsCastDividedAndSummedInBfloat16) {
  WithRanks(2, [](Communicator& communicator) {
    ExpectCastDividedSummed(Bf16Hook(), communicator, ToBrain);
  });
}

TEST(SixteenBit, Fp16_SumBeyondHalfsRange_AverageIsFinite) {
  WithRanks(3, [](Communicator& communicator) {
    TestGradients gradients({{2}}, {{0}});
    gradients.Set(0, {60000, 100000});
    const auto hook = Fp16Hook();
    ASSERT_OK(hook->Layout(gradients.views()));
    ASSERT_OK(ReduceAll(*hook, communicator, gradients));
    EXPECT_NEAR(gradients.Get(0)[0], 60000, 60);
    EXPECT_TRUE(std::isinf(gradients.Get(0)[1])) << "what half cannot hold is seen";
  });
}

TEST(SixteenBit, Clipping_BeforeTheCast_BoundsEachRanksElements) {
  WithRanks(2, [](Communicator& communicator) {
    TestGradients gradients({{4}}, {{0}});
    gradients.Set(0, {1e9f, -1e9f, 50, communicator.rank() == 0 ? 200.0f : 0.0f});
    const auto hook = std::make_shared<ClippingHook>(100, Fp16Hook());
    ASSERT_OK(hook->Layout(gradients.views()));
    ASSERT_OK(ReduceAll(*hook, communicator, gradients));
    EXPECT_EQ(gradients.Get(0), (std::vector<float>{100, -100, 50, 50}));
  });
}

TEST(SixteenBit, AllReduce_FiveRanks_IsTheAverageInAFloatsPrecision) {
  WithRanks(5, [](Communicator& communicator) {
    TestGradients gradients(kShapes, kBuckets);
    AllReduceHook hook;
    ASSERT_OK(hook.Layout(gradients.views()));
    gradients.Fill(communicator.rank(), 1);
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    for (size_t p = 0; p < kShapes.size(); ++p) {
      const std::vector<float> ours = gradients.Get(p);
      for (size_t i = 0; i < ours.size(); ++i) {
        double sum = 0;
        for (int rank = 0; rank < 5; ++rank) sum += GradientValue(rank, 1, p, i);
        ASSERT_NEAR(ours[i], sum / 5, 1e-6);
      }
    }
  });
}

TEST(SixteenBit, OverSparse_AfterAWhile_NothingIsLostButRounding) {
  WithRanks(2, [](Communicator& communicator) {
    const SparseOptions quarter{SparseOptions::Select::kTopK, 0.25, true};
    const auto hook = Fp16Hook(std::make_shared<SparseHook>(quarter));
    TestGradients gradients({{8}}, {{0}});
    ASSERT_OK(hook->Layout(gradients.views()));
    std::vector<double> given(8), taken(8);
    // Six steps with gradients, then enough steps without to send all residuals.
    for (int step = 1; step <= 20; ++step) {
      gradients.Set(0, std::vector<float>(8));
      if (step <= 6) gradients.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(*hook, communicator, gradients));
      for (size_t i = 0; i < 8; ++i) {
        taken[i] += gradients.Get(0)[i];
        if (step > 6) continue;
        given[i] += (GradientValue(0, step, 0, i) + GradientValue(1, step, 0, i)) / 2;
      }
    }
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(taken[i], given[i], 0.01) << i;
    EXPECT_EQ(hook->bytes_given(), 20u * 2 * (4 + 2)) << "two pairs each time";
  });
}

TEST(SixteenBit, Layout_Float64_Refused) {
  double value = 0;
  const GradientView gradient{0, 0, 1, {}};
  const BucketView bucket{0, 1, {&value, 1, DataType::kFloat64}, {&gradient, 1}};
  EXPECT_THAT(Fp16Hook()->Layout({bucket}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("bucket 0 are float64")));
}

TEST(SixteenBit, Start_CommunicatorAborted_FailsAndStaysFailed) {
  WithRanks(2, [](Communicator& communicator) {
    const auto hook = Fp16Hook();
    TestGradients gradients(kShapes, kBuckets);
    ASSERT_OK(hook->Layout(gradients.views()));
    if (communicator.rank() == 1) {
      communicator.Abort();
      return;
    }
    EXPECT_THAT(ReduceAll(*hook, communicator, gradients), StatusIs(StatusCode::kAborted));
    EXPECT_THAT(ReduceAll(*hook, communicator, gradients), StatusIs(StatusCode::kAborted));
  });
}

// Tests the hook within a reducer.
TEST(SixteenBit, Reducer_WithAHook_LeavesDivisionAndExchangeToIt) {
  WithRanks(2, [](Communicator& communicator) {
    std::vector<float> a(3), b(2);
    ReducerOptions options;
    options.timeout = kHookTestTimeout;
    options.first_bucket_bytes = options.bucket_bytes = 1;
    options.hook = Fp16Hook();
    auto reducer = Reducer::Create(communicator,
                                   {{"a", {a.data(), a.size(), DataType::kFloat32}, {3}},
                                    {"b", {b.data(), b.size(), DataType::kFloat32}, {2}}},
                                   options);
    ASSERT_OK(reducer);
    // 1 and 1 + 2^-12: in half both are 1.
    const float mine = 1 + communicator.rank() * 0x1p-12f;
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      const std::vector<float> gradient(3, mine);
      ASSERT_OK((*reducer)->MarkReady(0, gradient.data()));
      ASSERT_OK((*reducer)->MarkReady(1, gradient.data()));
      ASSERT_OK((*reducer)->Finish(kHookTestTimeout));
      for (const size_t i : {0u, 1u}) {
        EXPECT_EQ(static_cast<const float*>((*reducer)->Gradient(i).data)[1], 1.0f);
      }
    }
  });
}

}  // namespace

}  // namespace cadre::hooks
