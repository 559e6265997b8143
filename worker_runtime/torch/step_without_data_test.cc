// A rank that has no more samples, but gradients from passes inside NoSync.
#include <cmath>
#include <memory>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/utils.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::HasSubstr;

// Gradients can be worked out by hand: d(a) = input, d(b) = 2 * input.
struct Net : torch::nn::Module {
  Net() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({2}));
  }
  torch::Tensor forward(float input, bool use_b = true) {
    const torch::Tensor out = (a * input).sum();
    return use_b ? out + (b * 2 * input).sum() : out;
  }
  torch::Tensor a, b;
};

using Model = DataParallel<Net>;

bool Is(const torch::Tensor& tensor, float value) {
  return tensor.defined() && torch::all(tensor.eq(value)).item<bool>();
}

// Rank 1 has one pass of the step that rank 0 has two of.
TEST(StepWithoutData, CountsWhatNoSyncAddedUp) {
  OnEachRank(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == 0;
    auto net = std::make_shared<Net>();
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    for (int step = 0; step < 3; ++step) {
      (*model)->ZeroGrad();
      (*model)->set_weight(first ? 1 : 3);
      {
        const Model::NoSync no_sync(**model);
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
    // Nothing is left of it.
    (*model)->ZeroGrad();
    if (first) (*model)->forward(5).backward();
    ASSERT_OK(first ? (*model)->Finish() : (*model)->StepWithoutData());
    EXPECT_TRUE(Is(net->a.grad(), 5)) << net->a.grad();
  });
}

TEST(StepWithoutData, ChecksWhatNoSyncAddedUp) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Net>();
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    {
      const Model::NoSync no_sync(**model);
      (*model)->forward(communicator.rank() == 1 ? NAN : 1).backward();
      ASSERT_OK((*model)->Finish());
    }
    EXPECT_THAT((*model)->StepWithoutData().status(),
                StatusIs(StatusCode::kOutOfRange, HasSubstr("rank 1")));
  });
}

TEST(StepWithoutData, AfterNoSyncHasNoStaticGraph) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Net>();
    DataParallelOptions options = SmallBuckets();
    options.reducer.static_graph = true;
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    {
      const Model::NoSync no_sync(**model);
      (*model)->forward(1).backward();
      ASSERT_OK((*model)->Finish());
    }
    EXPECT_THAT((*model)->StepWithoutData().status(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("outside of NoSync")));
  });
}

}  // namespace
}  // namespace cadre::nn
