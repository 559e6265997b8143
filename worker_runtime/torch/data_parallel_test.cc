#include "cadre/torch/data_parallel.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/deterministic_reduction.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/optim/sgd.h"
#include "torch/serialize/input-archive.h"
#include "torch/serialize/output-archive.h"
#include "torch/utils.h"
#include "worker_runtime/torch/ranks_for_test.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Each output has one weight, so that gradients can be worked out by hand: d(sum)/dw = input.
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
      // Without zero_grad() the gradients of several passes add up, as everywhere in libtorch.
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
      // The scale's node is older than the model's pass, so autograd gets to it after the model's
      // gradients.
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
    // Now no rank uses the parameter again, so it keeps its gradient.
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
    // An optimizer that steps nevertheless is noticed too.
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

// An example is a causal mask, which is an expanded tensor.
TEST(DataParallel, ComparesBuffersOfAnyTypeAndLayout) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>(1);
    for (const torch::ScalarType type : {torch::kBool, torch::kInt8, torch::kInt16}) {
      net->register_buffer(torch::toString(type), torch::zeros({3}, type));
    }
    const torch::Tensor mask = torch::zeros({1, 4}, torch::kBool);
    net->register_buffer("mask", mask.expand({4, 4}));
    net->register_buffer("columns", torch::arange(6).view({2, 3}).t());
    // An expanded buffer cannot be broadcast, so broadcasts are off.
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

// Errors of DataParallel for models or options that it cannot work with.

namespace {

struct Words : torch::nn::Module {
  explicit Words(bool sparse)
      : e(register_module(
            "e", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(sparse)))) {}
  torch::Tensor forward() { return e->forward(torch::zeros({1}, torch::kInt64)).sum(); }
  torch::nn::Embedding e;
};

struct PlainNet : torch::nn::Module {
  PlainNet()
      : a(register_parameter("a", torch::ones({3}))),
        b(register_parameter("b", torch::ones({2}))) {}
  torch::Tensor forward(float input) { return (a * input).sum() + (b * input).sum(); }
  torch::Tensor a, b;
};

using PlainModel = DataParallel<PlainNet>;

TEST(DataParallelErrors, ASparseGradientIsNamedInOneLine) {
  OnEachRank(2, [](Communicator& communicator) {
    auto words = std::make_shared<Words>(true);
    auto model = DataParallel<Words>::Create(words, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward().backward();
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kUnimplemented,
                         AllOf(HasSubstr("the gradient of 'e.weight' is sparse"),
                               HasSubstr("sparse(false)"), Not(HasSubstr("\n")))));
  });
}

TEST(DataParallelErrors, ADenseGradientOfAnEmbeddingIsReduced) {
  OnEachRank(2, [](Communicator& communicator) {
    auto words = std::make_shared<Words>(false);
    auto model = DataParallel<Words>::Create(words, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward().backward();
    EXPECT_OK((*model)->Finish());
  });
}

TEST(DataParallelErrors, WhoLoadsAfterCreateHearsThatItComesBefore) {
  OnEachRank(1, [](Communicator& communicator) {
    std::stringstream saved;
    torch::serialize::OutputArchive out;
    PlainNet().save(out);
    out.save_to(saved);
    auto net = std::make_shared<PlainNet>();
    auto model = PlainModel::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    torch::serialize::InputArchive in;
    in.load_from(saved);
    net->load(in);
    (*model)->forward(1).backward();
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("'a' was given other storage"),
                               HasSubstr("load or convert the model before Create()"))));
  });
}

TEST(DataParallelErrors, ARankThatFroze) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<PlainNet>();
    if (communicator.rank() == 1) net->a.set_requires_grad(false);
    EXPECT_THAT(PlainModel::Create(net, communicator, SmallBuckets()),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'a' float32 with 3 elements [3] on rank 0"),
                               HasSubstr("train the same parameters of it (requires_grad)"))));
  });
}

TEST(DataParallelErrors, ThereIsNoModule) {
  OnEachRank(1, [](Communicator& communicator) {
    EXPECT_THAT(PlainModel::Create(nullptr, communicator, SmallBuckets()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("null")));
  });
}

TEST(DataParallelErrors, ATimeoutThatIsNone) {
  for (const int seconds : {0, -1}) {
    OnEachRank(2, [seconds](Communicator& communicator) {
      DataParallelOptions options = SmallBuckets();
      options.timeout = std::chrono::seconds(seconds);
      EXPECT_THAT(
          PlainModel::Create(std::make_shared<PlainNet>(), communicator, options),
          StatusIs(StatusCode::kInvalidArgument, HasSubstr("DataParallelOptions::timeout is ")));
      options = SmallBuckets();
      options.reducer.timeout = std::chrono::seconds(seconds);
      EXPECT_THAT(PlainModel::Create(std::make_shared<PlainNet>(), communicator, options),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("ReducerOptions::timeout is ")));
    });
  }
}

}  // namespace

// Steps of a rank that has no more samples, but gradients from passes inside NoSync.

namespace {

// Gradients can be worked out by hand: d(a) = input, d(b) = 2 * input.
struct SkippingNet : torch::nn::Module {
  SkippingNet() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({2}));
  }
  torch::Tensor forward(float input, bool use_b = true) {
    const torch::Tensor out = (a * input).sum();
    return use_b ? out + (b * 2 * input).sum() : out;
  }
  torch::Tensor a, b;
};

using SkippingModel = DataParallel<SkippingNet>;

// In each step rank 0 has two passes and rank 1 has one.
TEST(StepWithoutData, CountsWhatNoSyncAddedUp) {
  OnEachRank(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == 0;
    auto net = std::make_shared<SkippingNet>();
    auto model = SkippingModel::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    for (int step = 0; step < 3; ++step) {
      (*model)->ZeroGrad();
      (*model)->set_weight(first ? 1 : 3);
      {
        const SkippingModel::NoSync no_sync(**model);
        (*model)->forward(first ? 1 : 8, /*use_b=*/!first).backward();
        ASSERT_OK((*model)->Finish());
      }
      if (first) (*model)->forward(3, /*use_b=*/false).backward();
      const auto report = first ? (*model)->Finish() : (*model)->StepWithoutData();
      ASSERT_OK(report);
      EXPECT_EQ(report->weight, 4);
      EXPECT_TRUE(Is(net->a.grad(), (1 * (1 + 3) + 3 * 8) / 4.0f)) << net->a.grad();
      EXPECT_TRUE(Is(net->b.grad(), 3 * 16 / 4.0f)) << net->b.grad();
    }
    // The accumulated gradients have no further effect.
    (*model)->ZeroGrad();
    if (first) (*model)->forward(5).backward();
    ASSERT_OK(first ? (*model)->Finish() : (*model)->StepWithoutData());
    EXPECT_TRUE(Is(net->a.grad(), 5)) << net->a.grad();
  });
}

TEST(StepWithoutData, ChecksWhatNoSyncAddedUp) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<SkippingNet>();
    auto model = SkippingModel::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    {
      const SkippingModel::NoSync no_sync(**model);
      (*model)->forward(communicator.rank() == 1 ? NAN : 1).backward();
      ASSERT_OK((*model)->Finish());
    }
    EXPECT_THAT((*model)->StepWithoutData().status(),
                StatusIs(StatusCode::kOutOfRange, HasSubstr("rank 1")));
  });
}

TEST(StepWithoutData, AfterNoSyncHasNoStaticGraph) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<SkippingNet>();
    DataParallelOptions options = SmallBuckets();
    options.reducer.static_graph = true;
    auto model = SkippingModel::Create(net, communicator, options);
    ASSERT_OK(model);
    {
      const SkippingModel::NoSync no_sync(**model);
      (*model)->forward(1).backward();
      ASSERT_OK((*model)->Finish());
    }
    EXPECT_THAT((*model)->StepWithoutData().status(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("outside of NoSync")));
  });
}

constexpr int kParts = 24;
constexpr int kRowsOfAPart = 5;

// Returns the same images on every rank, whichever rank has the part.
torch::Tensor Images(int step, int part, torch::Device device) {
  const torch::Tensor numbers = torch::arange(kRowsOfAPart * 12) + 31 * part + 1009 * step;
  return (numbers * 0.37).sin().view({kRowsOfAPart, 12}).to(device);
}

struct Training {
  Kind optimizer = Kind::kAdam;
  Where where = Where::kHost;
  torch::ScalarType type = torch::kFloat32;
  int parts = kParts;
};

// A model's parameters, and the model and its optimizer as they are saved.
struct Trained {
  std::vector<torch::Tensor> parameters;
  std::string net, optimizer;
};

// Continues from `from`, if given; checks that all ranks end with the same, and returns rank 0's.
Trained Train(int ranks, int first_step, int steps, const Training& training,
              const Trained& from = {}) {
  RanksValues values(static_cast<size_t>(ranks));
  Trained trained;
  OnEachRank(ranks, [&](Communicator& communicator) {
    const torch::Device device = DeviceFor(training.where, communicator);
    // The seeds differ, because all ranks must begin with rank 0's parameters.
    ShardedNet net(communicator.rank() + 1);
    net.to(device, training.type);
    const auto optimizer = MakeOptimizer(training.optimizer, net.parameters());
    if (!from.net.empty()) {
      auto net_archive = ArchiveOf(from.net), optimizer_archive = ArchiveOf(from.optimizer);
      net.load(net_archive);
      optimizer->load(optimizer_archive);
    }
    DeterministicReductionOptions options;
    options.parts = training.parts;
    options.timeout = kLong;
    auto reduction = DeterministicReduction::Create(net, communicator, options);
    ASSERT_OK(reduction);
    for (int step = first_step; step < first_step + steps; ++step) {
      for (int part = (*reduction)->parts().begin; part < (*reduction)->parts().end; ++part) {
        net.forward(Images(step, part, device).to(training.type)).pow(2).mean().backward();
        ASSERT_OK((*reduction)->Take());
      }
      ASSERT_OK((*reduction)->Finish());
      optimizer->step();
      optimizer->zero_grad();
    }
    values[static_cast<size_t>(communicator.rank())] = ParametersOf(net);
    if (communicator.rank() != 0) return;
    torch::serialize::OutputArchive net_archive, optimizer_archive;
    net.save(net_archive);
    optimizer->save(optimizer_archive);
    trained = {ParametersOf(net), TextOf(net_archive), TextOf(optimizer_archive)};
  });
  for (const auto& one : values) ExpectSame(one, values[0]);
  return trained;
}

TEST(DeterministicReduction, ManyStepsGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdam}) {
    const auto expected = Train(1, 0, 25, {kind}).parameters;
    for (const int ranks : {2, 3, 4, 5, 8}) {
      SCOPED_TRACE(ranks);
      ExpectSame(Train(ranks, 0, 25, {kind}).parameters, expected);
    }
  }
}

TEST(DeterministicReduction, AJobThatShrinksAndGrowsHasTheSameBits) {
  const Training adam;
  const auto expected = Train(1, 0, 100, adam).parameters;
  Trained job = Train(4, 0, 30, adam);
  job = Train(3, 30, 40, adam, job);
  job = Train(4, 70, 30, adam, job);
  ExpectSame(job.parameters, expected);
}

TEST(DeterministicReduction, AnotherNumberOfPartsThanAPowerOfTwo) {
  const Training seven = {Kind::kSgd, Where::kHost, torch::kFloat32, 7};
  const auto expected = Train(1, 0, 10, seven).parameters;
  for (const int ranks : {2, 3, 7}) ExpectSame(Train(ranks, 0, 10, seven).parameters, expected);
}

TEST(DeterministicReduction, OnDevices) {
  const Training device = {Kind::kSgd, Where::kThroughHost};
  ExpectSame(Train(3, 0, 10, device).parameters, Train(1, 0, 10, device).parameters);
}

TEST(DeterministicReduction, SixteenBits) {
  const Training half = {Kind::kSgd, Where::kHost, torch::kBFloat16};
  ExpectSame(Train(4, 0, 10, half).parameters, Train(1, 0, 10, half).parameters);
}

TEST(DeterministicReduction, IsTheGradientOfTheWholeBatch) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net, whole;
    auto reduction = DeterministicReduction::Create(net, communicator, {4});
    ASSERT_OK(reduction);
    const PartRange mine = (*reduction)->parts();
    std::vector<torch::Tensor> batch;
    for (int part = 0; part < 4; ++part) batch.push_back(Images(0, part, torch::kCPU));
    for (int part = mine.begin; part < mine.end; ++part) {
      net.forward(batch[static_cast<size_t>(part)]).pow(2).mean().backward();
      ASSERT_OK((*reduction)->Take());
    }
    ASSERT_OK((*reduction)->Finish());
    whole.forward(torch::cat(batch)).pow(2).mean().backward();
    const auto ours = net.parameters(), theirs = whole.parameters();
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(ours[i].grad().allclose(theirs[i].grad(), 1e-5, 1e-7)) << i;
    }
  });
}

TEST(DeterministicReduction, WhatOnePartAloneUsesHasAGradient_AndWhatNoneUsesHasNone) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net;
    auto reduction = DeterministicReduction::Create(net, communicator, {2});
    ASSERT_OK(reduction);
    const size_t skipped = communicator.rank() == 0 ? 1 : 2;
    net.forward(Images(0, communicator.rank(), torch::kCPU), skipped).sum().backward();
    ASSERT_OK((*reduction)->Take());
    ASSERT_OK((*reduction)->Finish());
    const size_t layers = net.layers.size();
    EXPECT_TRUE(net.layers[layers - 2]->weight.grad().defined());
    EXPECT_FALSE(net.layers[layers - 1]->weight.grad().defined());
  });
}

TEST(DeterministicReduction, PartsThatAreMissingOrTooMany) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net;
    auto reduction = DeterministicReduction::Create(net, communicator, {2});
    ASSERT_OK(reduction);
    EXPECT_EQ((*reduction)->Finish().code(), StatusCode::kFailedPrecondition);
    ASSERT_OK((*reduction)->Take());
    EXPECT_THAT((*reduction)->Take().message(), HasSubstr("has given all of them"));
  });
}

TEST(DeterministicReduction, OptionsThatCannotBe) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net;
    EXPECT_THAT(DeterministicReduction::Create(net, communicator, {1}).status().message(),
                HasSubstr("1 parts are not enough for 2 ranks"));
    EXPECT_THAT(DeterministicReduction::Create(net, communicator, {2 + communicator.rank()})
                    .status()
                    .message(),
                HasSubstr("rank 1 cuts the batch into 3 parts, and rank 0 into 2"));
    ShardedNet other(1, {12, 24, 8 + communicator.rank(), 1});
    EXPECT_THAT(DeterministicReduction::Create(other, communicator, {2}).status().message(),
                HasSubstr("layer1.weight"));
  });
}

}  // namespace

}  // namespace cadre::nn

namespace cadre {
namespace {

using ::testing::HasSubstr;

// The tensor is larger than what libtorch buffers before it writes.
torch::Tensor Large() { return torch::arange(100000); }

TEST(ArchiveFileTest, WhatWasSavedIsLoaded) {
  const std::string path = ::testing::TempDir() + "/archive";
  torch::serialize::OutputArchive saved;
  saved.write("tensor", Large());
  ASSERT_THAT(SaveArchive(saved, path), IsOk());
  torch::serialize::InputArchive loaded;
  loaded.load_from(path);
  torch::Tensor tensor;
  loaded.read("tensor", tensor);
  EXPECT_TRUE(torch::equal(tensor, Large()));
}

TEST(ArchiveFileTest, WhatCannotBeReadIsNamed) {
  const std::string path = ::testing::TempDir() + "/of_others";
  const auto load = [&path] {
    return LoadArchive(path, torch::kCPU, [](torch::serialize::InputArchive& archive) {
      torch::Tensor tensor;
      archive.read("other", tensor);
    });
  };
  std::remove(path.c_str());
  EXPECT_THAT(load(), StatusIs(StatusCode::kNotFound, HasSubstr("cannot read " + path)));
  // A zip file, as torch.save() writes, and a pickle, as it wrote before 1.6.
  for (const std::string bytes : {"PK\3\4 and so on", "\x80\2\x8a\nl"}) {
    std::ofstream(path) << bytes;
    EXPECT_THAT(load(), StatusIs(StatusCode::kInvalidArgument,
                                 HasSubstr("convert what Python's torch.save() wrote")));
  }
  torch::serialize::OutputArchive saved;
  saved.write("tensor", Large());
  ASSERT_OK(SaveArchive(saved, path));
  EXPECT_THAT(
      load(),
      StatusIs(
          StatusCode::kInvalidArgument,
          HasSubstr(path +
                    " does not hold what this program reads from it: No such serialized tensor")));
}

// Fault (checkpoint): The disk is full while a checkpoint is saved -> The save fails and names the
// file
TEST(ArchiveFileTest, AFullDiskIsAnErrorThatNamesTheFile) {
  torch::serialize::OutputArchive archive;
  archive.write("tensor", Large());
  const Status status = SaveArchive(archive, "/dev/full");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/full: No space left on device"));
}

TEST(ArchiveFileTest, AFileThatCannotBeMadeIsNamed) {
  torch::serialize::OutputArchive archive;
  const Status status = SaveArchive(archive, ::testing::TempDir() + "/no/such/file");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/file"));
}

}  // namespace

}  // namespace cadre
