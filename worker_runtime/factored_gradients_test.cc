#include "worker_runtime/factored_gradients.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/gloo/gloo_communicator.h"
#include "worker_runtime/progress_page.h"
#include "worker_runtime/reducer.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/forked_workers.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);
// The smallest weight that is worth it.
constexpr size_t kOutputs = 1024, kInputs = 1025;
constexpr size_t kFactorBytes = (kOutputs + kInputs) * sizeof(float);
constexpr size_t kWholeBytes = kOutputs * kInputs * sizeof(float);

absl::Status Multiply(const FactorProduct& product) {
  for (size_t o = 0; o < product.outputs; ++o) {
    float* const result = product.result + o * product.inputs;
    std::memset(result, 0, product.inputs * sizeof(float));
    for (size_t row = 0; row < product.rows; ++row) {
      const float factor = product.gradient[row * product.gradient_stride + o];
      const float* const input = product.input + row * product.inputs;
      for (size_t i = 0; i < product.inputs; ++i) result[i] += factor * input[i];
    }
  }
  return absl::OkStatus();
}

// Factors whose elements, and their products' sums, are whole numbers.
struct Sample {
  Sample(int rank, int step, size_t rows)
      : rows(rows), input(rows * kInputs), gradient(rows * kOutputs) {
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>((i + step) % 7) - 3;
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * (rank + 1)) % 5) - 2;
    }
  }
  Factors factors() const { return {input.data(), gradient.data(), rows}; }
  std::vector<float> Whole() const {
    std::vector<float> result(kOutputs * kInputs);
    EXPECT_OK(Multiply(
        {gradient.data(), kOutputs, input.data(), rows, kOutputs, kInputs, result.data()}));
    return result;
  }
  size_t rows;
  std::vector<float> input, gradient;
};

// One rank of a model with a wide layer between two other parameters.
class Rank {
 public:
  static constexpr size_t kWide = 1;

  explicit Rank(Communicator& communicator, ReducerOptions options = {},
                MultiplyFactors multiply = Multiply)
      : communicator_(communicator) {
    options.timeout = kLong;
    options.multiply_factors = std::move(multiply);
    auto reducer = Reducer::Create(
        communicator,
        {{"first", {small_.data(), 3}, {3}},
         {"wide", {values_.data(), values_.size()}, {kOutputs, kInputs}, /*by_factors=*/true},
         {"last", {small_.data() + 3, 3}, {3}}},
        options);
    EXPECT_OK(reducer);
    if (reducer.ok()) reducer_ = *std::move(reducer);
  }

  // Gives the factors where they are taken, else the gradient; `with_factors` false: always that.
  void Mark(const Sample& sample, bool with_factors = true) {
    if (with_factors && reducer_->OfferFactors(kWide, sample.factors())) {
      ASSERT_OK(reducer_->MarkReady(kWide, nullptr));
    } else {
      ASSERT_OK(reducer_->MarkReady(kWide, sample.Whole().data()));
    }
    const float ones[] = {1, 1, 1};
    ASSERT_OK(reducer_->MarkReady(0, ones));
    ASSERT_OK(reducer_->MarkReady(2, ones));
  }
  absl::StatusOr<StepReport> Step(const Sample& sample, bool with_factors = true,
                                  double weight = 1) {
    EXPECT_OK(reducer_->BeginStep(true, weight));
    if (sample.rows > 0) Mark(sample, with_factors);
    return reducer_->Finish(kLong);
  }
  absl::Span<const float> gradient() const {
    const Buffer place = reducer_->Gradient(kWide);
    return {static_cast<const float*>(place.data), place.count};
  }
  Reducer& reducer() { return *reducer_; }
  int rank() const { return communicator_.rank(); }
  int ranks() const { return communicator_.size(); }

 private:
  Communicator& communicator_;
  std::vector<float> values_ = std::vector<float>(kOutputs * kInputs);
  std::vector<float> small_ = std::vector<float>(6);
  std::unique_ptr<Reducer> reducer_;
};

// sum(weight * gradient) / sum(weight), in whole numbers until the division.
void ExpectAverage(const Rank& rank, const std::vector<Sample>& samples,
                   const std::vector<double>& weights) {
  std::vector<double> sum(kOutputs * kInputs);
  double total = 0;
  for (size_t r = 0; r < samples.size(); ++r) {
    total += weights[r];
    const std::vector<float> whole = samples[r].Whole();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weights[r] * whole[i];
  }
  double worst = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    worst = std::max(worst, std::abs(sum[i] / total - rank.gradient()[i]));
  }
  EXPECT_LT(worst, 1e-4) << "on rank " << rank.rank();
}

bool WentByFactors(const StepReport& report) { return report.bytes < kWholeBytes; }

// First, because it forks.
TEST(FactoredGradients, ARankThatDiesWhileItMultipliesIsNamed) {
  ForkedWorkers workers(2);
  workers.Start([](Worker& worker) {
    CommunicatorOptions options;
    options.timeout = kLong;
    auto communicator = ConnectSharedMemory(worker, options);
    if (!communicator.ok()) return 1;
    const bool dies = worker.rank() == 1;
    Rank rank(**communicator, {}, [dies](const FactorProduct& product) {
      if (dies) kill(getpid(), SIGKILL);
      return Multiply(product);
    });
    const Sample sample(worker.rank(), 1, 2);
    if (!rank.Step(sample).ok()) return 2;
    const absl::Status status = rank.Step(sample).status();
    const std::string text = status.ToString();
    std::fprintf(stderr, "%s\n", text.c_str());  // for whoever reads a failure
    return absl::IsUnavailable(status) && text.find("rank 1 is gone") != std::string::npos &&
                   text.find("step 2, gradients that travel as factors (wide)") != std::string::npos
               ? 0
               : 3;
  });
  EXPECT_EQ(workers.Wait(0), 0);
  EXPECT_EQ(workers.Wait(1), 128 + SIGKILL);
}

TEST(FactoredGradients, PayWhereTheyAreFarSmallerThanTheGradient) {
  EXPECT_EQ(MostFactorRows(2048, 2048, 2), 64);
  EXPECT_EQ(MostFactorRows(2048, 2048, 8), 32);
  EXPECT_EQ(MostFactorRows(2048, 2048, 257), 0);
  EXPECT_EQ(MostFactorRows(1023, 1024, 2), 0);
  EXPECT_EQ(MostFactorRows(2048, 2048, 1), 0);
}

class FactoredGradientsOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(FactoredGradientsOfRanks, AreTheAverageAndTheSameBitsOnAllRanks) {
  const int ranks = GetParam();
  std::mutex mutex;
  std::vector<std::vector<float>> results(ranks);
  OnEachRank(ConnectSharedMemory, ranks, [&](Communicator& communicator) {
    Rank rank(communicator);
    for (int step = 1; step <= 4; ++step) {
      // Other numbers of samples on each rank, counted by their number; none on the last one once.
      std::vector<Sample> samples;
      std::vector<double> weights;
      for (int r = 0; r < ranks; ++r) {
        const bool none = ranks > 1 && r == ranks - 1 && step == 3;
        samples.emplace_back(r, step, none ? 0 : 1 + (r + step) % 3);
        weights.push_back(step == 4 ? 1 : static_cast<double>(samples.back().rows));
      }
      const auto report = rank.Step(samples[rank.rank()], true, weights[rank.rank()]);
      ASSERT_OK(report);
      EXPECT_EQ(WentByFactors(*report), step > 1 || ranks == 1) << "step " << step;
      ExpectAverage(rank, samples, weights);
    }
    std::lock_guard<std::mutex> lock(mutex);
    results[rank.rank()].assign(rank.gradient().begin(), rank.gradient().end());
  });
  for (int r = 1; r < ranks; ++r) EXPECT_EQ(results[r], results[0]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, FactoredGradientsOfRanks, ::testing::Values(1, 2, 3, 4));

TEST(FactoredGradients, AreReducedWholeWhereOneRankHasNone) {
  OnEachRank(ConnectSharedMemory, 2, [](Communicator& communicator) {
    Rank rank(communicator);
    const std::vector<Sample> samples = {Sample(0, 1, 2), Sample(1, 1, 1)};
    const Sample& own = samples[rank.rank()];
    ASSERT_OK(rank.Step(own));
    // Not known beforehand: late, but right; then whole from the beginning.
    for (int64_t step = 2; step <= 3 + kWholeSteps; ++step) {
      const auto report = rank.Step(own, /*with_factors=*/step > 2 || rank.rank() == 0);
      ASSERT_OK(report);
      EXPECT_EQ(WentByFactors(*report), step == 3 + kWholeSteps) << "step " << step;
      if (step < 4 || step > 1 + kWholeSteps) ExpectAverage(rank, samples, {1, 1});
    }
  });
}

TEST(FactoredGradients, MayBeAPartAndStayAsTheyWereWhereNobodyHasAny) {
  OnEachRank(ConnectSharedMemory, 2, [](Communicator& communicator) {
    Rank rank(communicator);
    const std::vector<Sample> samples = {Sample(0, 1, 1), Sample(1, 1, 1)};
    const Sample& own = samples[rank.rank()];
    ASSERT_OK(rank.Step(own));
    // The same twice: as more rows, and on rank 1 as factors and a gradient.
    ASSERT_OK(rank.reducer().BeginStep());
    ASSERT_TRUE(rank.reducer().OfferFactors(Rank::kWide, own.factors()));
    rank.Mark(own, /*with_factors=*/rank.rank() == 0);
    ASSERT_OK(rank.reducer().Finish(kLong));
    const std::vector<float> first = samples[0].Whole(), second = samples[1].Whole();
    for (size_t i = 0; i < first.size(); ++i) {
      ASSERT_FLOAT_EQ(rank.gradient()[i], first[i] + second[i]) << i;
    }
    const std::vector<float> before(rank.gradient().begin(), rank.gradient().end());
    const auto nothing = rank.Step(Sample(0, 1, 0), true, 0);
    ASSERT_OK(nothing);
    EXPECT_EQ(nothing->weight, 0);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), rank.gradient().begin()));
  });
}

TEST(FactoredGradients, NameTheRankWhoseFactorsAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    for (const NonFinite choice : {NonFinite::kError, NonFinite::kSkip, NonFinite::kIgnore}) {
      OnEachRank(ConnectSharedMemory, 3, [&](Communicator& communicator) {
        ReducerOptions options;
        options.non_finite = choice;
        Rank rank(communicator, options);
        Sample sample(rank.rank(), 1, 2);
        ASSERT_OK(rank.Step(sample));
        // A number, or one whose product with any other is none.
        if (rank.rank() == 1) sample.input[5] = sample.gradient[7] = bad;
        const auto report = rank.Step(sample);
        const std::string reason = "a gradient is not finite in step 2: on rank 1 of 'wide'";
        if (choice == NonFinite::kError) {
          EXPECT_THAT(report, StatusIs(absl::StatusCode::kOutOfRange, reason));
          return;
        }
        ASSERT_OK(report);
        EXPECT_EQ(report->skipped, choice == NonFinite::kSkip);
        EXPECT_EQ(report->reason, choice == NonFinite::kSkip ? reason : "");
        const auto after = rank.Step(Sample(rank.rank(), 1, 2));
        ASSERT_OK(after);
        EXPECT_TRUE(WentByFactors(*after));
        ExpectAverage(rank, {Sample(0, 1, 2), Sample(1, 1, 2), Sample(2, 1, 2)}, {1, 1, 1});
      });
    }
  }
}

TEST(FactoredGradients, SayThatTheProductFailed) {
  OnEachRank(ConnectSharedMemory, 2, [](Communicator& communicator) {
    const int own = communicator.rank();
    Rank rank(communicator, {}, [own](const FactorProduct& product) {
      return own == 1 ? absl::InternalError("no such product") : Multiply(product);
    });
    const Sample sample(own, 1, 1);
    ASSERT_OK(rank.Step(sample));
    EXPECT_THAT(rank.Step(sample),
                own == 1 ? StatusIs(absl::StatusCode::kInternal, HasSubstr("no such product"))
                         : StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
  });
}

// Rank 0 multiplies, then waits for rank 1, which multiplies as long as rank 0's page says
// otherwise.
TEST(FactoredGradients, PagesSayWhoMultipliesAndWhoWaits) {
  std::string directory = ::testing::TempDir() + "/factors_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const auto place_of = [&directory](int rank) {
    const auto page = ReadProgressPage(ProgressPagePath(directory, 1, rank));
    return page.ok() ? PhaseText(page->phase, page->bucket) : page.status().ToString();
  };
  OnEachRank(ConnectSharedMemory, 2, [&](Communicator& communicator) {
    const int own = communicator.rank();
    ReducerOptions options;
    auto page = ProgressPage::Create(directory, {1, own, 2});
    ASSERT_OK(page);
    options.page = *std::move(page);
    std::string wait_for_wide;
    Rank rank(communicator, options, [&](const FactorProduct& product) {
      EXPECT_EQ(place_of(own), "is in the backward pass");
      const MonoTime deadline = MonoNow() + kLong;
      while (own == 1 && place_of(0) != wait_for_wide && MonoNow() < deadline) {
        std::this_thread::yield();
      }
      if (own == 1) {
        EXPECT_EQ(place_of(0), wait_for_wide);
      }
      return Multiply(product);
    });
    const Sample sample(own, 1, 1);
    ASSERT_OK(rank.Step(sample));
    ASSERT_OK(rank.reducer().BeginStep());
    const std::vector<Bucket>& buckets = rank.reducer().buckets();
    const auto wide = std::find(buckets.begin(), buckets.end(), Bucket{Rank::kWide});
    wait_for_wide = PhaseText(WorkerPhase::kWaiting, static_cast<int>(wide - buckets.begin()));
    rank.Mark(sample);
    const auto report = rank.reducer().Finish(kLong);
    ASSERT_OK(report);
    EXPECT_TRUE(WentByFactors(*report));
  });
  std::filesystem::remove_all(directory);
}

TEST(FactoredGradients, AreNotTakenWhereRanksShareNoMemory) {
  OnEachRank(ConnectGloo, 2, [](Communicator& communicator) {
    Rank rank(communicator);
    for (int step = 1; step <= 2; ++step) {
      const auto report = rank.Step(Sample(communicator.rank(), step, 1));
      ASSERT_OK(report);
      EXPECT_FALSE(WentByFactors(*report));
    }
    ExpectAverage(rank, {Sample(0, 2, 1), Sample(1, 2, 1)}, {1, 1});
  });
}

TEST(FactoredGradients, RanksThatDoNotAgreeOnThemAreRefused) {
  OnEachRank(ConnectSharedMemory, 2, [](Communicator& communicator) {
    std::vector<float> values(4);
    EXPECT_THAT(
        Reducer::Create(communicator, {{"w", {values.data(), 4}, {2, 2}, communicator.rank() == 1}},
                        {}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("'w' float32 with 4 elements [2, 2] by factors on rank 1 but 'w' "
                           "float32 with 4 elements [2, 2] on rank 0")));
  });
}

}  // namespace
}  // namespace cadre
