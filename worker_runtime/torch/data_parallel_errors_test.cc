// What DataParallel says about a model or options that it cannot work with.
#include <chrono>
#include <memory>
#include <sstream>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/serialize/input-archive.h"
#include "torch/serialize/output-archive.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Words : torch::nn::Module {
  explicit Words(bool sparse)
      : e(register_module(
            "e", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(sparse)))) {}
  torch::Tensor forward() { return e->forward(torch::zeros({1}, torch::kInt64)).sum(); }
  torch::nn::Embedding e;
};

struct Net : torch::nn::Module {
  Net()
      : a(register_parameter("a", torch::ones({3}))),
        b(register_parameter("b", torch::ones({2}))) {}
  torch::Tensor forward(float input) { return (a * input).sum() + (b * input).sum(); }
  torch::Tensor a, b;
};

using Model = DataParallel<Net>;

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
    Net().save(out);
    out.save_to(saved);
    auto net = std::make_shared<Net>();
    auto model = Model::Create(net, communicator, SmallBuckets());
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
    auto net = std::make_shared<Net>();
    if (communicator.rank() == 1) net->a.set_requires_grad(false);
    EXPECT_THAT(Model::Create(net, communicator, SmallBuckets()),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'a' float32 with 3 elements [3] on rank 0"),
                               HasSubstr("train the same parameters of it (requires_grad)"))));
  });
}

TEST(DataParallelErrors, ThereIsNoModule) {
  OnEachRank(1, [](Communicator& communicator) {
    EXPECT_THAT(Model::Create(nullptr, communicator, SmallBuckets()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("null")));
  });
}

TEST(DataParallelErrors, ATimeoutThatIsNone) {
  for (const int seconds : {0, -1}) {
    OnEachRank(2, [seconds](Communicator& communicator) {
      DataParallelOptions options = SmallBuckets();
      options.timeout = std::chrono::seconds(seconds);
      EXPECT_THAT(
          Model::Create(std::make_shared<Net>(), communicator, options),
          StatusIs(StatusCode::kInvalidArgument, HasSubstr("DataParallelOptions::timeout is ")));
      options = SmallBuckets();
      options.reducer.timeout = std::chrono::seconds(seconds);
      EXPECT_THAT(Model::Create(std::make_shared<Net>(), communicator, options),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("ReducerOptions::timeout is ")));
    });
  }
}

}  // namespace
}  // namespace cadre::nn
