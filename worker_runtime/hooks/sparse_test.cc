#include "cadre/hooks/sparse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/hooks/hook_harness.h"
#include "worker_runtime/hooks/selection.h"

namespace cadre::hooks {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Shapes kShapes = {{6, 20}, {31}, {50}};
const std::vector<reduce::Bucket> kBuckets = {{2, 1}, {0}};

SparseOptions TopK(double share) { return {SparseOptions::Select::kTopK, share, true}; }
SparseOptions Threshold(double magnitude) {
  return {SparseOptions::Select::kThreshold, magnitude, true};
}

// One step of all ranks, by the formula: g += residual; select; residual = g - selected; sum the
// selected elements over the ranks.
class Reference {
 public:
  Reference(int ranks, SparseOptions options) : options_(options) {
    for (const reduce::Bucket& bucket : kBuckets) {
      residuals_.emplace_back(ranks, std::vector<float>(CountIn(bucket)));
    }
  }

  std::vector<float> Step(int step, size_t b) {
    std::vector<float> sum(CountIn(kBuckets[b]));
    for (size_t rank = 0; rank < residuals_[b].size(); ++rank) {
      std::vector<float>& g = residuals_[b][rank];
      size_t at = 0;
      for (const size_t p : kBuckets[b]) {
        for (size_t i = 0; i < CountOf(kShapes[p]); ++i) {
          g[at++] += GradientValue(static_cast<int>(rank), step, p, i);
        }
      }
      for (const size_t i : Chosen(g)) {
        sum[i] += g[i];
        g[i] = 0;
        ++chosen_;
      }
      if (!options_.residual) std::fill(g.begin(), g.end(), 0.0f);
    }
    for (float& value : sum) value /= static_cast<float>(residuals_[b].size());
    return sum;
  }

  size_t chosen() const { return chosen_; }

 private:
  static size_t CountIn(const reduce::Bucket& bucket) {
    size_t count = 0;
    for (const size_t p : bucket) count += CountOf(kShapes[p]);
    return count;
  }

  std::vector<size_t> Chosen(const std::vector<float>& g) const {
    std::vector<size_t> order(g.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](size_t x, size_t y) { return std::fabs(g[x]) > std::fabs(g[y]); });
    size_t count = static_cast<size_t>(std::ceil(options_.sparsity * g.size()));
    if (options_.select == SparseOptions::Select::kThreshold) {
      count = static_cast<size_t>(std::count_if(
          g.begin(), g.end(), [&](float x) { return std::fabs(x) >= options_.sparsity; }));
    }
    order.resize(count);
    return order;
  }

  const SparseOptions options_;
  std::vector<std::vector<std::vector<float>>> residuals_;  // by bucket and rank
  size_t chosen_ = 0;
};

void ExpectLikeReference(int ranks, SparseOptions options, int steps) {
  WithRanks(ranks, [&](Communicator& communicator) {
    Reference reference(ranks, options);
    SparseHook hook(options);
    TestGradients gradients(kShapes, kBuckets);
    ASSERT_OK(hook.Layout(gradients.views()));
    for (int step = 1; step <= steps; ++step) {
      gradients.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(hook, communicator, gradients));
      for (size_t b = 0; b < kBuckets.size(); ++b) {
        const std::vector<float> expected = reference.Step(step, b);
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(gradients.bucket(b)[i], expected[i], 1e-6)
              << "step " << step << ", bucket " << b << ", element " << i;
        }
      }
    }
    EXPECT_GT(reference.chosen(), 0u);
  });
}

TEST(SparseHook, TopK_SeveralSteps_IsTheFormula) {
  for (const int ranks : {1, 2, 3, 5}) ExpectLikeReference(ranks, TopK(0.05), 12);
}

TEST(SparseHook, Threshold_SeveralSteps_IsTheFormula) {
  // One in 80 normally distributed gradients is as large at first, more with the residual.
  for (const int ranks : {1, 2, 3}) ExpectLikeReference(ranks, Threshold(2.5), 12);
}

TEST(SparseHook, MoreThanHalf_SummedDensely_IsTheFormula) {
  ExpectLikeReference(3, TopK(0.6), 5);
  ExpectLikeReference(2, Threshold(0.2), 5);
}

TEST(SparseHook, WithoutResidual_WhatIsNotSentIsLost) {
  SparseOptions options = TopK(0.05);
  options.residual = false;
  ExpectLikeReference(2, options, 5);
}

TEST(SparseHook, Threshold_NothingLargeEnough_WaitsUntilItIs) {
  WithRanks(2, [](Communicator& communicator) {
    SparseHook hook(Threshold(1));
    TestGradients gradients({{40}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    // Rank 0 gathers 0.4 in each step; rank 1 nothing.
    const std::vector<float> mine(40, communicator.rank() == 0 ? 0.375f : 0.0f);
    for (int step = 1; step <= 3; ++step) {
      gradients.Set(0, mine);
      ASSERT_OK(ReduceAll(hook, communicator, gradients));
      EXPECT_THAT(gradients.Get(0), Each(step < 3 ? 0 : 3 * 0.375f / 2)) << step;
    }
  });
}

TEST(SparseHook, Threshold_RanksSendDifferentlyMuch_CountsAreExact) {
  WithRanks(3, [](Communicator& communicator) {
    SparseHook hook(Threshold(1));
    TestGradients gradients({{1000}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    std::vector<float> mine(1000);
    // 0, 1 and 2 elements.
    for (int i = 0; i < communicator.rank(); ++i) mine[10 * communicator.rank() + i] = 3;
    gradients.Set(0, mine);
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    const std::vector<float> sum = gradients.Get(0);
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(sum[i], i == 10 || i == 20 || i == 21 ? 1 : 0) << i;
    }
  });
}

TEST(SparseHook, TopK_SendsOnlyTheShare) {
  WithRanks(2, [](Communicator& communicator) {
    SparseHook hook(TopK(0.01));
    TestGradients gradients({{1000}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    gradients.Fill(communicator.rank(), 1);
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    EXPECT_EQ(hook.bytes_given(), 10u * (4 + 4));
  });
}

TEST(SparseHook, NanIsSentOnceAndNotKept) {
  WithRanks(2, [](Communicator& communicator) {
    SparseHook hook(TopK(0.01));
    TestGradients gradients({{100}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    std::vector<float> mine(100, 0.5f);
    if (communicator.rank() == 1) mine[7] = std::numeric_limits<float>::quiet_NaN();
    gradients.Set(0, mine);
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    EXPECT_TRUE(std::isnan(gradients.Get(0)[7]));
    gradients.Set(0, std::vector<float>(100));
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    for (const float value : gradients.Get(0)) EXPECT_TRUE(std::isfinite(value));
  });
}

// There are more NaNs than elements that are sent.
TEST(SparseHook, AGradientOfNothingButNanIsNotKept) {
  WithRanks(2, [](Communicator& communicator) {
    SparseHook hook(TopK(0.05));
    TestGradients gradients({{100}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    const bool bad = communicator.rank() == 1;
    gradients.Set(0, std::vector<float>(100, bad ? NAN : 0.5f));
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    for (int step = 0; step < 3; ++step) {
      gradients.Set(0, std::vector<float>(100, 1));
      ASSERT_OK(ReduceAll(hook, communicator, gradients));
      for (const float value : gradients.Get(0)) EXPECT_TRUE(std::isfinite(value)) << step;
    }
  });
}

// Three steps, a checkpoint, and three more: in the same process or in a new one.
void ExpectSameAfterLoading(SparseOptions options, const std::vector<reduce::Bucket>& new_buckets) {
  WithRanks(2, [&](Communicator& communicator) {
    SparseHook first(options), second(options);
    TestGradients before(kShapes, kBuckets), after(kShapes, new_buckets);
    ASSERT_OK(first.Layout(before.views()));
    for (int step = 1; step <= 3; ++step) {
      before.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(first, communicator, before));
    }
    const auto state = first.SaveState();
    ASSERT_OK(state);
    ASSERT_OK(second.LoadState(*state));
    ASSERT_OK(second.Layout(after.views()));
    SparseHook without(options);
    ASSERT_OK(without.Layout(after.views()));
    bool differs = false;
    for (int step = 4; step <= 6; ++step) {
      before.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(first, communicator, before));
      after.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(second, communicator, after));
      EXPECT_EQ(before.GetAll(), after.GetAll()) << "step " << step;
      after.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(without, communicator, after));
      differs = differs || before.GetAll() != after.GetAll();
    }
    EXPECT_TRUE(differs) << "without the state nothing would be missing";
  });
}

TEST(SparseHook, State_LoadedMidway_ContinuesTheSame) {
  ExpectSameAfterLoading(TopK(0.05), kBuckets);
  ExpectSameAfterLoading(Threshold(2), kBuckets);
}

TEST(SparseHook, State_OtherBuckets_ResidualsFollowTheirParameters) {
  ExpectSameAfterLoading(Threshold(2), {{0}, {1}, {2}});
}

TEST(SparseHook, Layout_AfterSteps_ResidualsFollowTheirParameters) {
  WithRanks(2, [](Communicator& communicator) {
    SparseHook one(Threshold(2)), moved(Threshold(2));
    TestGradients gradients(kShapes, kBuckets), others(kShapes, {{0, 1, 2}});
    ASSERT_OK(one.Layout(gradients.views()));
    ASSERT_OK(moved.Layout(gradients.views()));
    for (int step = 1; step <= 4; ++step) {
      gradients.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(one, communicator, gradients));
      TestGradients& mine = step < 3 ? gradients : others;
      const auto expected = gradients.GetAll();
      if (step == 3) {
        ASSERT_OK(moved.Layout(others.views()));
      }
      mine.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(moved, communicator, mine));
      EXPECT_EQ(mine.GetAll(), expected) << "step " << step;
    }
  });
}

TEST(SparseHook, State_OfAnotherModelOrHook_Refused) {
  WithRanks(1, [](Communicator& communicator) {
    SparseHook hook(TopK(0.05));
    TestGradients gradients({{40}}, {{0}}), others({{41}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    const auto state = hook.SaveState();
    ASSERT_OK(state);
    SparseHook other(TopK(0.05));
    ASSERT_OK(other.LoadState(*state));
    EXPECT_THAT(other.Layout(others.views()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("parameter 0 has 41")));
    EXPECT_THAT(other.LoadState("cadre hook state 1: partial\n"),
                StatusIs(StatusCode::kInvalidArgument));
  });
}

TEST(SparseHook, Layout_SparsityOutOfRange_SaysWhatIsExpected) {
  TestGradients gradients({{4}}, {{0}});
  for (const SparseOptions& bad : {TopK(0), TopK(1.01), TopK(-1), TopK(NAN), Threshold(0)}) {
    EXPECT_THAT(SparseHook(bad).Layout(gradients.views()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected more than 0")));
  }
  EXPECT_OK(SparseHook(TopK(1)).Layout(gradients.views()));
  EXPECT_OK(SparseHook(Threshold(5)).Layout(gradients.views()));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The definition: sorted by magnitude, lower indices first among equals.
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
        // Makes many values equal.
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
