#include "worker_runtime/reduce/bucket_reduction.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BucketQueueTest : public ::testing::Test {
 protected:
  // Returns the buckets that this starts.
  std::vector<size_t> Complete(size_t bucket) {
    queue_.CompleteOne(bucket);
    std::vector<size_t> started;
    queue_.StartNext([&](size_t next) {
      started.push_back(next);
      return StartedBucket{works_[next], 10 + next};
    });
    return started;
  }

  BucketQueue queue_;
  const std::vector<std::shared_ptr<Work>> works_ = {std::make_shared<Work>(), nullptr,
                                                     std::make_shared<Work>()};
};

TEST_F(BucketQueueTest, StartsInOrderWhatIsComplete) {
  for (int step = 0; step < 2; ++step) {
    queue_.Begin({{4, 3}, {2}, {1, 0}});
    EXPECT_THAT(Complete(2), IsEmpty());
    EXPECT_THAT(Complete(1), IsEmpty());
    EXPECT_THAT(Complete(0), IsEmpty());
    EXPECT_THAT(Complete(0), ElementsAre(0, 1));
    EXPECT_EQ(queue_.started(0).work, works_[0]);
    EXPECT_EQ(queue_.started(1).sequence, 11);
    EXPECT_EQ(queue_.started(2).work, nullptr);
    EXPECT_THAT(Complete(2), ElementsAre(2));
  }
}

TEST_F(BucketQueueTest, KnowsWhetherOneRuns) {
  queue_.Begin({{2}, {1}, {0}});
  EXPECT_FALSE(queue_.any_runs());
  for (size_t bucket = 0; bucket < 3; ++bucket) Complete(bucket);
  works_[0]->Complete(OkStatus(), std::chrono::nanoseconds(0));
  EXPECT_TRUE(queue_.any_runs());
  queue_.Wait(std::chrono::nanoseconds(0));
  EXPECT_TRUE(queue_.any_runs());
  works_[2]->Complete(AbortedError("failed"), std::chrono::nanoseconds(0));
  EXPECT_FALSE(queue_.any_runs());
  queue_.Wait(std::chrono::nanoseconds::max());
}

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

TEST(StepVerdict, SaysOnWhichRanksAGradientOfWhatIsNotFinite) {
  const std::vector<Parameter> parameters = {{"weight", {}, {}}, {"new\nline", {}, {}}};
  const struct {
    std::vector<std::optional<size_t>> not_finite;  // by rank
    std::string text;
  } rows[] = {
      {{std::nullopt, std::nullopt}, ""},
      {{std::nullopt, 0}, "a gradient is not finite in step 7: on rank 1 of 'weight'"},
      {{1, std::nullopt, 0},
       "a gradient is not finite in step 7: on rank 0 of 'new\\nline', rank 2 of 'weight'"},
      // An index that a rank of another program might send.
      {{2, std::nullopt}, ""},
  };
  for (const auto& row : rows) {
    StepSummaries summaries;
    for (const auto& one : row.not_finite) summaries.ranks.push_back({one, 7, 0});
    EXPECT_EQ(DescribeNonFinite(summaries, parameters, 7), row.text);
  }
}

TEST(StepVerdict, WhereNobodyDriftedNobodyIsAsked) {
  testing::OnEachRank(sockets::ConnectSockets, 2, [](Communicator& communicator) {
    float value = 1;
    const std::vector<Parameter> parameters = {{"one", {&value, 1}, {1}}};
    // A collective on one rank only would not match the other's barrier.
    if (communicator.rank() == 0) {
      EXPECT_OK(CheckDrift(communicator, parameters, {}, 7, kLong));
    }
    EXPECT_OK(communicator.Barrier()->Wait(kLong));
  });
}

TEST(StepVerdict, NamesTheParameterThatDriftedWhereItCan) {
  testing::OnEachRank(sockets::ConnectSockets, 3, [](Communicator& communicator) {
    float first = 1, second = communicator.rank() == 2 ? 5 : 4;
    const std::vector<Parameter> parameters = {{"first", {&first, 1}, {1}},
                                               {"second", {&second, 1}, {1}}};
    EXPECT_THAT(CheckDrift(communicator, parameters, {2}, 7, kLong),
                StatusIs(StatusCode::kDataLoss,
                         "the parameters were different before step 7 on rank 2 than on rank 0: "
                         "parameter 'second' differs from rank 0's on rank 2; something changed "
                         "them without the other ranks, or a step went around the reducer"));
    // The values are equal again by now.
    second = 4;
    EXPECT_THAT(CheckDrift(communicator, parameters, {1, 2}, 7, kLong),
                StatusIs(StatusCode::kDataLoss,
                         "the parameters were different before step 7 on rank 1, 2 than on rank "
                         "0; something changed them without the other ranks, or a step went around "
                         "the reducer"));
  });
}

// Does with the tails what a communicator does: multiplies each by its rank's factor, then sums.
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

// The sum is an exact integer, in float32 and for any factors.
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
