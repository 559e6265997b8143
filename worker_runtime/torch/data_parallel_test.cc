#include "cadre/torch/data_parallel.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One weight per output, so that gradients can be worked out by hand: d(sum)/dw = input.
struct Net : torch::nn::Module {
  explicit Net(float value) {
    a = register_parameter("a", torch::full({3}, value));
    b = register_parameter("b", torch::full({2}, value));
    seen = register_buffer("seen", torch::full({1}, static_cast<int64_t>(value), torch::kInt64));
  }
  torch::Tensor forward(float input, bool use_b = true) {
    torch::Tensor out = (a * input).sum();
    return use_b ? out + (b * 2 * input).sum() : out;
  }
  torch::Tensor a, b, seen;
};

using Model = DataParallel<Net>;

bool Is(const torch::Tensor& tensor, float value) {
  return tensor.defined() && torch::all(tensor.eq(value)).item<bool>();
}

TEST(DataParallel, AveragesGradientsIntoGrad) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1.0f + communicator.rank());
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    EXPECT_TRUE(Is(net->a, 1) && Is(net->b, 1) && Is(net->seen, 1)) << "rank 0's state";
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      (*model)->forward(1.0f + 2 * communicator.rank()).backward();
      const auto report = (*model)->Finish();
      ASSERT_OK(report);
      EXPECT_EQ(report->step, step + 1);
      EXPECT_EQ(report->buckets, 2u);
      EXPECT_TRUE(Is(net->a.grad(), 2)) << net->a.grad();
      EXPECT_TRUE(Is(net->b.grad(), 4)) << net->b.grad();
      optimizer.step();
    }
    EXPECT_TRUE(Is(net->a, 1 - 4));
    EXPECT_OK((*model)->CheckParametersEqual(kLong));
  });
}

TEST(DataParallel, GradLivesInTheBucketAndStaysThere) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    torch::Tensor kept;
    for (int step = 0; step < 3; ++step) {
      (*model)->forward(1).backward();
      ASSERT_OK((*model)->Finish());
      EXPECT_EQ(net->a.grad().data_ptr(), (*model)->reducer().Gradient(0).data);
      EXPECT_EQ(net->b.grad().data_ptr(), (*model)->reducer().Gradient(1).data);
      // Without zero_grad() passes add up, as everywhere in libtorch.
      EXPECT_TRUE(Is(net->a.grad(), step + 1));
      kept = net->a.grad();
    }
    net->a.mutable_grad() = torch::Tensor();
    (*model)->forward(7).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_EQ(net->a.grad().data_ptr(), (*model)->reducer().Gradient(0).data);
    EXPECT_TRUE(Is(net->a.grad(), 7));
    // A gradient may outlive the model.
    model->reset();
    EXPECT_TRUE(Is(kept, 7));
    net->forward(1).backward();
    EXPECT_TRUE(Is(net->a.grad(), 8));
  });
}

TEST(DataParallel, AccumulatesWithoutExchangeInsideNoSync) {
  OnEachRank(2, [](Communicator& communicator) {
    const float mine = 1.0f + communicator.rank();
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    {
      Model::NoSync no_sync(**model);
      for (int pass = 0; pass < 2; ++pass) {
        (*model)->forward(mine).backward();
        const auto report = (*model)->Finish();
        ASSERT_OK(report);
        EXPECT_FALSE(report->synchronized);
      }
    }
    EXPECT_TRUE(Is(net->a.grad(), 2 * mine)) << "local";
    (*model)->forward(mine).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_TRUE(Is(net->a.grad(), 4.5f)) << "three passes, averaged over ranks: " << net->a.grad();
  });
}

TEST(DataParallel, GoesOnAfterABackwardPassThatThrewInsideNoSync) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    {
      Model::NoSync no_sync(**model);
      // Older than the model's pass, so that autograd comes to it when that has its gradients.
      const torch::Tensor scale = torch::ones({}, torch::requires_grad()) * 2;
      scale.register_hook([](const torch::Tensor&) -> void { throw std::runtime_error("full"); });
      EXPECT_ANY_THROW(((*model)->forward(3) * scale).backward());
      EXPECT_TRUE(net->a.grad().defined());
    }
    net->zero_grad();
    (*model)->forward(1.0f + communicator.rank()).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_TRUE(Is(net->a.grad(), 1.5f)) << net->a.grad();
  });
}

TEST(DataParallel, AveragesWhatAnyRankUsed) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward(1, /*use_b=*/false).backward();
    auto report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_THAT(report->used, ElementsAre(true, false));
    EXPECT_FALSE(net->b.grad().defined()) << "no rank used it";
    (*model)->forward(1, /*use_b=*/communicator.rank() == 1).backward();
    report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_THAT(report->used, ElementsAre(true, true));
    EXPECT_TRUE(Is(net->b.grad(), 1)) << "rank 1's 2, averaged: " << net->b.grad();
    // Now nobody again: it keeps what it had.
    (*model)->forward(1, /*use_b=*/false).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_TRUE(Is(net->b.grad(), 1)) << net->b.grad();
  });
}

TEST(DataParallel, WithAStaticGraphAnotherGraphIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    DataParallelOptions options = SmallBuckets();
    options.reducer.static_graph = true;
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    for (int step = 0; step < 3; ++step) {
      (*model)->ZeroGrad();
      (*model)->forward(1.0f + communicator.rank()).backward();
      ASSERT_OK((*model)->Finish());
      EXPECT_TRUE(Is(net->a.grad(), 1.5f));
    }
    (*model)->forward(1, /*use_b=*/false).backward();
    EXPECT_THAT((*model)->Finish(), StatusIs(StatusCode::kFailedPrecondition,
                                             HasSubstr("as often as in the first step: b;")));
  });
}

// Rank 0 has 3, 1 and no samples, rank 1 has 1, 1 and 2: the averages are over all samples.
TEST(DataParallel, RanksCountByTheirSamples) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    const std::vector<int> samples =
        communicator.rank() == 0 ? std::vector<int>{3, 1, 0, 0} : std::vector<int>{1, 1, 2, 0};
    const float mean = 2.0f + 4 * communicator.rank();
    std::vector<float> got;
    double weight = 1;
    for (size_t step = 0; weight > 0; ++step) {
      ASSERT_LT(step, samples.size());
      (*model)->ZeroGrad();
      Result<StepReport> report;
      if (samples[step] > 0) {
        (*model)->set_weight(samples[step]);
        (*model)->forward(mean).backward();
        report = (*model)->Finish();
      } else {
        report = (*model)->StepWithoutData();
      }
      ASSERT_OK(report);
      weight = report->weight;
      if (weight > 0) got.push_back(net->a.grad()[2].item<float>());
    }
    EXPECT_THAT(got, ElementsAre((3 * 2 + 6) / 4.0f, 4, 6));
    EXPECT_FALSE(net->a.grad().defined()) << "no rank had data";
  });
}

TEST(DataParallel, AnOptimizerWithoutAReductionIsAnError) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    EXPECT_THAT((*model)->BeforeOptimizerStep(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("without a reduction")));
    (*model)->forward(1).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_OK((*model)->BeforeOptimizerStep());
    {
      Model::NoSync no_sync(**model);
      (*model)->forward(1).backward();
    }
    EXPECT_THAT(
        (*model)->BeforeOptimizerStep(),
        StatusIs(StatusCode::kFailedPrecondition, HasSubstr("without a reduction since step 1")));
    // An optimizer that steps all the same is noticed too.
    torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.5)).step();
    (*model)->forward(1).backward();
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition,
                         HasSubstr("parameters changed after step 1 although")));
  });
}

TEST(DataParallel, ABackwardPassBeforeTheFirstForwardIsAnError) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    net->forward(1).backward();
    EXPECT_THAT((*model)->BeforeOptimizerStep(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("outside a step")));
  });
}

TEST(DataParallel, ABackwardPassAroundItIsAnError) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward(1).backward();
    ASSERT_OK((*model)->Finish());
    net->forward(1).backward();
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("outside a step")));
  });
}

TEST(DataParallel, FinishNeedsABackwardPass) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward(1);
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("without a backward pass")));
    (*model)->forward(1).backward();
    EXPECT_OK((*model)->Finish());
  });
}

TEST(DataParallel, NoticesThatAParameterWasReplaced) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    net->to(torch::kFloat64);
    (*model)->forward(1).backward();
    EXPECT_THAT((*model)->Finish(), StatusIs(StatusCode::kFailedPrecondition,
                                             HasSubstr("'a' was given other storage")));
  });
}

TEST(DataParallel, AFailedExchangeIsReportedAndNotThrown) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    communicator.Abort();
    (*model)->forward(1).backward();
    EXPECT_FALSE((*model)->Finish().ok());
    EXPECT_FALSE((*model)->Finish().ok());
  });
}

TEST(DataParallel, BuffersFollowRankZeroInTrainingOnly) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    net->seen.fill_(10 + communicator.rank());
    net->eval();
    // One rank may evaluate alone.
    if (communicator.rank() == 1) (*model)->forward(1);
    EXPECT_TRUE(Is(net->seen, 10.0f + communicator.rank()));
    net->train();
    (*model)->forward(1).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_TRUE(Is(net->seen, 10));
  });
}

TEST(DataParallel, FindsTheRankWhoseParametersDiffer) {
  OnEachRank(3, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    torch::NoGradGuard no_grad;
    if (communicator.rank() == 1) net->b.add_(1e-6f);
    EXPECT_THAT((*model)->CheckParametersEqual(kLong),
                StatusIs(StatusCode::kDataLoss, HasSubstr("'b' differs from rank 0's on rank 1")));
  });
}

// A causal mask, say, which is expanded.
TEST(DataParallel, ComparesBuffersOfAnyTypeAndLayout) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    for (const torch::ScalarType type : {torch::kBool, torch::kInt8, torch::kInt16}) {
      net->register_buffer(torch::toString(type), torch::zeros({3}, type));
    }
    const torch::Tensor mask = torch::zeros({1, 4}, torch::kBool);
    net->register_buffer("mask", mask.expand({4, 4}));
    net->register_buffer("columns", torch::arange(6).view({2, 3}).t());
    // An expanded one is not broadcast.
    DataParallelOptions options = SmallBuckets();
    options.broadcast_buffers = options.reducer.broadcast_parameters = false;
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    const auto same = (*model)->CheckParametersEqual(kLong);
    ASSERT_OK(same);
    if (communicator.rank() == 1) mask[0][2] = true;
    EXPECT_THAT((*model)->CheckParametersEqual(kLong),
                StatusIs(StatusCode::kDataLoss, HasSubstr("'mask' differs")));
  });
}

TEST(DataParallel, AParameterThatIsThawedIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    net->b.set_requires_grad(false);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward(1).backward();
    ASSERT_OK((*model)->Finish());
    net->b.set_requires_grad(true);
    (*model)->forward(1).backward();
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("parameter 'b' was thawed")));
  });
}

TEST(DataParallel, ABackwardPassInEvaluationModeSaysSo) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    net->eval();
    (*model)->forward(1).backward();
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("in evaluation mode?")));
  });
}

TEST(DataParallel, ASharedParameterCountsOnce) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    net->register_parameter("tied", net->a);
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    EXPECT_EQ((*model)->reducer().size(), 2u);
    (*model)->forward(1.0f + communicator.rank()).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_TRUE(Is(net->a.grad(), 1.5f));
  });
}

}  // namespace
}  // namespace cadre::nn
