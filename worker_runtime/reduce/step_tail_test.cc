#include "worker_runtime/reduce/step_tail.h"

#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Does as a communicator with the tails: each multiplied with its rank's factor, then summed.
template <typename T>
StepSummaries Exchange(const std::vector<StepSummary>& summaries, DataType type) {
  const int ranks = static_cast<int>(summaries.size());
  const size_t parameters = summaries[0].used.size();
  std::vector<T> sum(TailCount(ranks, parameters));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<T> own(sum.size(), T{99});
    WriteTail(summaries[rank], rank, ranks, {own.data(), own.size(), type});
    const T factor = static_cast<T>(AverageFactor(summaries[rank].weight, ranks));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += own[i] * factor;
  }
  return ReadTail({sum.data(), sum.size(), type}, ranks, parameters);
}

std::vector<StepSummary> Notes(int ranks) {
  std::vector<StepSummary> summaries(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    summaries[rank].step = 41;
    summaries[rank].fingerprint = 0x0123456789abcdef;
    summaries[rank].used = {true, false, rank == ranks - 1};
  }
  return summaries;
}

TEST(StepTail, BringsEveryonesWordsUnharmed) {
  for (int ranks = 1; ranks <= 70; ++ranks) {
    std::vector<StepSummary> summaries = Notes(ranks);
    summaries[ranks / 2].not_finite = kMaxTailWord - 2;
    summaries[ranks - 1].fingerprint = 0xffff0000fffffffe;
    for (const StepSummaries& got : {Exchange<float>(summaries, DataType::kFloat32),
                                     Exchange<double>(summaries, DataType::kFloat64)}) {
      EXPECT_FALSE(got.uneven);
      EXPECT_NEAR(got.weight, ranks, ranks * 1e-6);
      EXPECT_OK(CheckSameStep(got, 41));
      EXPECT_THAT(got.used, ElementsAre(true, false, true));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(got.ranks[rank].fingerprint, summaries[rank].fingerprint) << ranks;
        EXPECT_EQ(got.ranks[rank].not_finite, summaries[rank].not_finite) << ranks;
      }
    }
  }
}

TEST(StepTail, WeightsAddUpAndDoNotHarmTheWords) {
  std::vector<StepSummary> summaries = Notes(4);
  summaries[0].weight = 0;
  summaries[1].weight = 1e6;
  summaries[2].weight = 0.37;
  summaries[2].not_finite = 777777;
  const StepSummaries got = Exchange<float>(summaries, DataType::kFloat32);
  EXPECT_TRUE(got.uneven);
  EXPECT_NEAR(got.weight, 1000001.37, 0.5);
  EXPECT_OK(CheckSameStep(got, 41));
  EXPECT_EQ(got.ranks[2].not_finite, 777777u);
  EXPECT_THAT(Drifted(got), ElementsAre());
}

// As whole as they are, in float32 and whatever the factors.
TEST(StepTail, CountsOfSamplesAddUpExactly) {
  for (int ranks = 2; ranks <= 70; ++ranks) {
    std::vector<StepSummary> summaries = Notes(ranks);
    for (int rank = 0; rank < ranks; ++rank) summaries[rank].weight = 509 + rank % 2;
    EXPECT_EQ(Exchange<float>(summaries, DataType::kFloat32).weight, 509 * ranks + ranks / 2);
  }
}

TEST(StepTail, SaysWhoIsInAnotherStepAndWhoDrifted) {
  std::vector<StepSummary> summaries = Notes(3);
  summaries[1].step = 40;
  summaries[2].fingerprint ^= 1;
  const StepSummaries got = Exchange<float>(summaries, DataType::kFloat32);
  EXPECT_THAT(
      CheckSameStep(got, 41),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("here step 41, but rank 1 is in step 40")));
  EXPECT_THAT(Drifted(got), ElementsAre(2));
}

TEST(StepTail, ALongRunKeepsCounting) {
  std::vector<StepSummary> summaries = Notes(2);
  for (StepSummary& summary : summaries) summary.step = 5 * kMaxTailWord + 7;
  const StepSummaries got = Exchange<float>(summaries, DataType::kFloat32);
  EXPECT_OK(CheckSameStep(got, 5 * kMaxTailWord + 7));
  EXPECT_FALSE(CheckSameStep(got, 5 * kMaxTailWord + 8).ok());
}

}  // namespace
}  // namespace cadre::reduce
