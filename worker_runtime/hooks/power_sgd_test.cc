#include "cadre/hooks/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/hooks/hook_harness.h"
#include "worker_runtime/hooks/low_rank.h"

namespace cadre::hooks {
namespace {

using ::testing::HasSubstr;

// A matrix, a bias, a convolution, and a matrix that would not get smaller.
const Shapes kShapes = {{12, 20}, {12}, {8, 3, 5}, {2, 3}};
const std::vector<reduce::Bucket> kBuckets = {{3, 2}, {1, 0}};

using Matrix = std::vector<std::vector<double>>;

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b[0].size(); ++j) {
      for (size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix Transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

Matrix Combined(const Matrix& a, const Matrix& b, double factor) {
  Matrix c = a;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) c[i][j] += factor * b[i][j];
  }
  return c;
}

// Gram-Schmidt on columns.
Matrix Orthonormal(const Matrix& a) {
  Matrix columns = Transposed(a);
  for (size_t c = 0; c < columns.size(); ++c) {
    for (size_t before = 0; before < c; ++before) {
      double product = 0;
      for (size_t i = 0; i < a.size(); ++i) product += columns[c][i] * columns[before][i];
      for (size_t i = 0; i < a.size(); ++i) columns[c][i] -= product * columns[before][i];
    }
    double norm = 0;
    for (const double x : columns[c]) norm += x * x;
    for (double& x : columns[c]) x /= std::sqrt(norm);
  }
  return Transposed(columns);
}

Matrix GradientMatrix(int rank, int step, size_t parameter) {
  const size_t rows = kShapes[parameter][0], columns = CountOf(kShapes[parameter]) / rows;
  Matrix m(rows, std::vector<double>(columns));
  for (size_t i = 0; i < rows * columns; ++i) {
    m[i / columns][i % columns] = GradientValue(rank, step, parameter, i);
  }
  return m;
}

// The algorithm of the paper for one parameter on all ranks, in double precision.
class Reference {
 public:
  Reference(int ranks, const PowerSgdOptions& options, size_t parameter)
      : ranks_(ranks), options_(options), parameter_(parameter) {
    const Matrix like = GradientMatrix(0, 0, parameter);
    errors_.assign(ranks, Combined(like, like, -1));
  }

  Matrix Average(int step) const {
    Matrix sum = GradientMatrix(0, step, parameter_);
    for (int r = 1; r < ranks_; ++r) sum = Combined(sum, GradientMatrix(r, step, parameter_), 1);
    return Combined(sum, sum, 1.0 / ranks_ - 1);
  }

  // `iteration` counts from 0.
  Matrix Compressed(int step, int64_t iteration) {
    std::vector<Matrix> m;
    for (int r = 0; r < ranks_; ++r) {
      m.push_back(GradientMatrix(r, step, parameter_));
      if (options_.use_error_feedback) m[r] = Combined(m[r], errors_[r], 1);
    }
    if (q_.empty() || !options_.warm_start) q_ = RandomQ(iteration, m[0][0].size());
    q_ = Orthonormal(q_);
    Matrix p = Product(m[0], q_);
    for (int r = 1; r < ranks_; ++r) p = Combined(p, Product(m[r], q_), 1);
    p = Orthonormal(p);
    q_ = Product(Transposed(m[0]), p);
    for (int r = 1; r < ranks_; ++r) q_ = Combined(q_, Product(Transposed(m[r]), p), 1);
    q_ = Combined(q_, q_, 1.0 / ranks_ - 1);
    const Matrix result = Product(p, Transposed(q_));
    for (int r = 0; r < ranks_; ++r) errors_[r] = Combined(m[r], result, -1);
    return result;
  }

 private:
  Matrix RandomQ(int64_t iteration, size_t columns) const {
    const size_t rank = options_.matrix_approximation_rank;
    std::vector<float> values(columns * rank);
    FillRandom(options_.random_seed, iteration, parameter_, MakeSpan(values));
    Matrix q(columns, std::vector<double>(rank));
    for (size_t i = 0; i < values.size(); ++i) q[i / rank][i % rank] = values[i];
    return q;
  }

  const int ranks_;
  const PowerSgdOptions options_;
  const size_t parameter_;
  std::vector<Matrix> errors_;
  Matrix q_;
};

void ExpectMatrix(const std::vector<float>& ours, const Matrix& expected, int step, size_t p) {
  for (size_t i = 0; i < ours.size(); ++i) {
    const size_t columns = expected[0].size();
    ASSERT_NEAR(ours[i], expected[i / columns][i % columns], 2e-4)
        << "step " << step << ", parameter " << p << ", element " << i;
  }
}

void ExpectLikeReference(int ranks, const PowerSgdOptions& options, int steps) {
  WithRanks(ranks, [&](Communicator& communicator) {
    std::vector<Reference> references;
    for (size_t p = 0; p < kShapes.size(); ++p) references.emplace_back(ranks, options, p);
    PowerSgdHook hook(options);
    TestGradients gradients(kShapes, kBuckets);
    ASSERT_OK(hook.Layout(gradients.views()));
    for (int step = 0; step < steps; ++step) {
      gradients.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(hook, communicator, gradients));
      const bool compressing = step >= options.start_power_sgd_iter;
      for (size_t p = 0; p < kShapes.size(); ++p) {
        const bool matrix = p == 0 || p == 2;
        const Matrix expected = compressing && matrix ? references[p].Compressed(step, step)
                                                      : references[p].Average(step);
        // A vector is a column here; the elements are the same.
        ExpectMatrix(gradients.Get(p), expected, step, p);
      }
    }
    EXPECT_EQ(hook.iteration(), steps);
  });
}

PowerSgdOptions EarlyStart(int rank) {
  PowerSgdOptions options;
  options.start_power_sgd_iter = 2;
  options.matrix_approximation_rank = rank;
  return options;
}

TEST(PowerSgd, SeveralSteps_IsTheAlgorithm) {
  for (const int ranks : {1, 2, 3}) ExpectLikeReference(ranks, EarlyStart(1), 8);
  ExpectLikeReference(2, EarlyStart(2), 8);
}

TEST(PowerSgd, WithoutWarmStart_QIsNewInEachStep) {
  PowerSgdOptions options = EarlyStart(2);
  options.warm_start = false;
  options.random_seed = 5;
  ExpectLikeReference(2, options, 6);
}

TEST(PowerSgd, WithoutErrorFeedback_IsTheAlgorithm) {
  PowerSgdOptions options = EarlyStart(1);
  options.use_error_feedback = false;
  ExpectLikeReference(2, options, 6);
}

TEST(PowerSgd, GradientsOfRankOne_AreExact) {
  WithRanks(2, [](Communicator& communicator) {
    PowerSgdHook hook(EarlyStart(1));
    TestGradients gradients({{10, 30}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    std::vector<float> mine(300);
    for (size_t i = 0; i < 300; ++i) mine[i] = (i / 30 + 1.0f) * (i % 30 - 7.0f);
    for (int step = 0; step < 4; ++step) {
      std::vector<float> scaled = mine;
      for (float& x : scaled) x *= communicator.rank() == 0 ? 1.0f : 3.0f;
      gradients.Set(0, scaled);
      ASSERT_OK(ReduceAll(hook, communicator, gradients));
      for (size_t i = 0; i < 300; ++i) ASSERT_NEAR(gradients.Get(0)[i], 2 * mine[i], 1e-2);
    }
  });
}

TEST(PowerSgd, GradientsThatDieAway_StayFiniteAndComeBack) {
  WithRanks(2, [](Communicator& communicator) {
    PowerSgdHook hook(EarlyStart(2));
    TestGradients gradients({{10, 30}}, {{0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    for (int step = 0; step < 6; ++step) {
      gradients.Set(0, std::vector<float>(300, step == 5 ? 1.0f : 0.0f));
      ASSERT_OK(ReduceAll(hook, communicator, gradients));
    }
    for (const float value : gradients.Get(0)) EXPECT_NEAR(value, 1, 1e-5);
  });
}

// Only the state that the non-finite gradient affected is dropped.
//
// Fault (collective): A gradient is not finite on one rank, and its hook keeps state between steps
// (PowerSGD, top-K) -> Only that step fails or is skipped, and nothing of it stays in the hook's
// state
TEST(PowerSgd, AGradientThatIsNotFinite_CostsItsStepAlone) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    WithRanks(2, [bad](Communicator& communicator) {
      PowerSgdHook hook(EarlyStart(2));
      TestGradients gradients({{10, 30}, {12, 20}}, {{0, 1}});
      ASSERT_OK(hook.Layout(gradients.views()));
      for (int step = 0; step < 8; ++step) {
        gradients.Fill(communicator.rank(), step);
        std::vector<float> mine = gradients.Get(0);
        if (step == 4 && communicator.rank() == 1) mine[7] = bad;
        gradients.Set(0, mine);
        ASSERT_OK(ReduceAll(hook, communicator, gradients));
        const auto is_finite = [](float value) { return std::isfinite(value); };
        const std::vector<float> first = gradients.Get(0), second = gradients.Get(1);
        EXPECT_EQ(std::all_of(first.begin(), first.end(), is_finite), step != 4) << step;
        EXPECT_TRUE(std::all_of(second.begin(), second.end(), is_finite)) << step;
        std::vector<float> of_first_rank = first;
        ASSERT_OK(
            communicator
                .Broadcast({of_first_rank.data(), of_first_rank.size(), DataType::kFloat32}, 0)
                ->Wait(kHookTestTimeout));
        if (step != 4) {
          EXPECT_EQ(first, of_first_rank) << step;
        }
      }
    });
  }
}

TEST(PowerSgd, BytesAreThoseOfTheFactors) {
  WithRanks(2, [](Communicator& communicator) {
    PowerSgdHook hook(EarlyStart(1));
    TestGradients gradients({{100, 200}, {7}}, {{1, 0}});
    ASSERT_OK(hook.Layout(gradients.views()));
    // In the third step rank 0 also broadcasts its Q.
    for (int step = 0; step < 3; ++step) ASSERT_OK(ReduceAll(hook, communicator, gradients));
    const uint64_t before = hook.bytes_given();
    ASSERT_OK(ReduceAll(hook, communicator, gradients));
    EXPECT_EQ(hook.bytes_given() - before, (7 + 100 + 200) * 4u);
  });
}

TEST(PowerSgd, InSixteenBits_HalvesTheFactors) {
  WithRanks(2, [](Communicator& communicator) {
    const auto hook = Fp16Hook(std::make_shared<PowerSgdHook>(EarlyStart(1)));
    TestGradients gradients({{100, 200}, {7}}, {{1, 0}});
    ASSERT_OK(hook->Layout(gradients.views()));
    std::vector<float> mine(20000);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = (i / 200) * 0.01f * ((i % 200) * 0.01f - 1);
    uint64_t before = 0;
    for (int step = 0; step < 5; ++step) {
      gradients.Set(0, mine);
      before = hook->bytes_given();
      ASSERT_OK(ReduceAll(*hook, communicator, gradients));
    }
    EXPECT_EQ(hook->bytes_given() - before, (7 + 100 + 200) * 2u);
    for (size_t i = 0; i < mine.size(); ++i) ASSERT_NEAR(gradients.Get(0)[i], mine[i], 5e-3);
  });
}

TEST(PowerSgd, State_LoadedMidway_ContinuesTheSame) {
  WithRanks(2, [](Communicator& communicator) {
    PowerSgdHook first(EarlyStart(2)), second(EarlyStart(2));
    // Buckets as after a restart: the state follows its parameter.
    TestGradients before(kShapes, kBuckets), after(kShapes, kBuckets);
    ASSERT_OK(first.Layout(before.views()));
    for (int step = 0; step < 5; ++step) {
      before.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(first, communicator, before));
    }
    const auto state = first.SaveState();
    ASSERT_OK(state);
    ASSERT_OK(second.LoadState(*state));
    ASSERT_OK(second.Layout(after.views()));
    for (int step = 5; step < 9; ++step) {
      before.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(first, communicator, before));
      after.Fill(communicator.rank(), step);
      ASSERT_OK(ReduceAll(second, communicator, after));
      EXPECT_EQ(before.GetAll(), after.GetAll()) << "step " << step;
    }
    EXPECT_EQ(second.iteration(), 9);
  });
}

TEST(PowerSgd, State_OnlyOnRankZero_OthersTakeItsFactors) {
  WithRanks(2, [](Communicator& communicator) {
    PowerSgdHook first(EarlyStart(1)), second(EarlyStart(1));
    TestGradients gradients({{10, 30}}, {{0}});
    ASSERT_OK(first.Layout(gradients.views()));
    std::vector<float> mine(300);
    for (size_t i = 0; i < 300; ++i) mine[i] = (i / 30 + 1.0f) * (i % 30 - 7.0f);
    for (int step = 0; step < 4; ++step) {
      gradients.Set(0, mine);
      ASSERT_OK(ReduceAll(first, communicator, gradients));
    }
    if (communicator.rank() == 0) {
      const auto state = first.SaveState();
      ASSERT_OK(state);
      ASSERT_OK(second.LoadState(*state));
    }
    ASSERT_OK(second.Layout(gradients.views()));
    gradients.Set(0, mine);
    ASSERT_OK(ReduceAll(second, communicator, gradients));
    EXPECT_EQ(second.iteration(), 5);
    for (size_t i = 0; i < 300; ++i) EXPECT_NEAR(gradients.Get(0)[i], mine[i], 1e-2);
  });
}

TEST(PowerSgd, Layout_OptionsOutOfRange_Refused) {
  TestGradients gradients({{4, 4}}, {{0}});
  const auto layout = [&](const PowerSgdOptions& options) {
    return PowerSgdHook(options).Layout(gradients.views());
  };
  EXPECT_OK(layout(PowerSgdOptions()));
  EXPECT_THAT(layout(EarlyStart(0)), StatusIs(StatusCode::kInvalidArgument));
  PowerSgdOptions options;
  options.start_power_sgd_iter = 1;
  EXPECT_THAT(layout(options),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("start at step 1")));
  options.use_error_feedback = options.warm_start = false;
  EXPECT_OK(layout(options));
  options.min_compression_rate = 0;
  EXPECT_THAT(layout(options), StatusIs(StatusCode::kInvalidArgument));
}

TEST(PowerSgd, DefaultsArePyTorchs) {
  const PowerSgdOptions options;
  EXPECT_EQ(options.matrix_approximation_rank, 1);
  EXPECT_EQ(options.start_power_sgd_iter, 1000);
  EXPECT_EQ(options.min_compression_rate, 2);
  EXPECT_TRUE(options.use_error_feedback);
  EXPECT_TRUE(options.warm_start);
  EXPECT_EQ(options.orthogonalization_epsilon, 0);
  EXPECT_EQ(options.random_seed, 0u);
}

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
