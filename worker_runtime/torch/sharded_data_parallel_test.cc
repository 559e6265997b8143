#include "cadre/torch/sharded_data_parallel.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Whole = DataParallel<ShardedNet>;
using Model = ShardedDataParallel<ShardedNet>;

class ShardedDataParallelTraining : public ShardedTraining {
 protected:
  // One step's passes of a model of either kind.
  using Passes = std::function<void(Communicator&, Whole&, int step)>;

  static void OnePass(Communicator& communicator, Whole& model, int step) {
    // Not all layers are used in each step.
    model.forward(Input(communicator, step), step % 2).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  }

  // Each rank's parameters after some steps.
  static RanksValues Train(int ranks, bool sharded, int steps, const Passes& passes = OnePass,
                           DataParallelOptions options = Options()) {
    RanksValues values(static_cast<size_t>(ranks));
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeNet(communicator);
      const auto plain = MakeOptimizer(kind(), net->parameters());
      std::unique_ptr<ShardedOptimizer> optimizer;
      std::unique_ptr<Whole> model;
      if (sharded) {
        auto created =
            ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
        ASSERT_OK(created);
        optimizer = *std::move(created);
        auto wrapped = Model::Create(net, *optimizer, options);
        ASSERT_OK(wrapped);
        model = *std::move(wrapped);
      } else {
        auto wrapped = Whole::Create(net, communicator, options);
        ASSERT_OK(wrapped);
        model = *std::move(wrapped);
      }
      for (int step = 0; step < steps; ++step) {
        if (!sharded) model->ZeroGrad();
        passes(communicator, *model, step);
        if (sharded) {
          ASSERT_OK(optimizer->Step());
        } else {
          plain->step();
        }
      }
      EXPECT_OK(model->CheckParametersEqual(kLong));
      values[static_cast<size_t>(communicator.rank())] = ParametersOf(*net);
    });
    return values;
  }

  static void ExpectAsUnsharded(int ranks, int steps, const Passes& passes = OnePass,
                                const DataParallelOptions& options = Options()) {
    ExpectClose(Train(ranks, true, steps, passes, options),
                Train(ranks, false, steps, passes, options), ranks <= 2);
  }
};

INSTANTIATE_TEST_SUITE_P(Each, ShardedDataParallelTraining, EachWayAndKind(), NameOf);

TEST_P(ShardedDataParallelTraining, IsAsUnsharded) {
  for (const int ranks : {1, 2, 3, 4}) ExpectAsUnsharded(ranks, 50);
}

TEST_P(ShardedDataParallelTraining, InOneBucketForEachOwner) {
  DataParallelOptions options;
  options.connect_device = ConnectFor(where());
  ExpectAsUnsharded(2, 6, OnePass, options);
}

TEST_P(ShardedDataParallelTraining, AddsUpInsideNoSync) {
  ExpectAsUnsharded(2, 5, [](Communicator& communicator, Whole& model, int step) {
    {
      const Whole::NoSync no_sync(model);
      OnePass(communicator, model, step + 100);
      OnePass(communicator, model, step + 200);
    }
    OnePass(communicator, model, step);
  });
}

TEST_P(ShardedDataParallelTraining, CountsByWeight) {
  ExpectAsUnsharded(2, 6, [](Communicator& communicator, Whole& model, int step) {
    if (step % 2 == 1 && communicator.rank() == 1) {
      ASSERT_OK(model.StepWithoutData());
      return;
    }
    model.set_weight(1 + 2 * communicator.rank());
    OnePass(communicator, model, step);
  });
}

TEST_P(ShardedDataParallelTraining, WithParametersThatNotAllRanksUse) {
  ExpectAsUnsharded(2, 6, [](Communicator& communicator, Whole& model, int step) {
    const size_t skipped = step % 3 == communicator.rank() ? 2 : 0;
    model.forward(Input(communicator, step), skipped).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  });
}

TEST_P(ShardedDataParallelTraining, WithAStaticGraphThatUsesSomeTwice) {
  DataParallelOptions options = Options();
  options.reducer.static_graph = true;
  ExpectAsUnsharded(
      2, 5,
      [](Communicator& communicator, Whole& model, int step) {
        const torch::Tensor out = model.forward(Input(communicator, step));
        const torch::Tensor again = model.module().forward(Input(communicator, step + 50), 1);
        (out.pow(2).mean() + again.mean()).backward();
        ASSERT_OK(model.Finish());
      },
      options);
}

// Of ZeRO's table: 4 bytes of gradient for each parameter in float32, over the ranks.
TEST_P(ShardedDataParallelTraining, LeavesEachRankItsOwnGradients) {
  constexpr int kRanks = 4;
  OnEachRank(kRanks, [&](Communicator& communicator) {
    const auto net =
        std::make_shared<ShardedNet>(1, std::vector<int>{12, 64, 64, 64, 64, 64, 64, 64, 64, 8});
    net->to(DeviceFor(where(), communicator));
    const auto plain = MakeOptimizer(kind(), net->parameters());
    auto optimizer =
        ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
    ASSERT_OK(optimizer);
    auto model = Model::Create(net, **optimizer, Options());
    ASSERT_OK(model);
    for (int step = 0; step < 3; ++step) {
      (*model)->forward(Input(communicator, step)).pow(2).mean().backward();
      ASSERT_OK((*model)->Finish());
      size_t all = 0, here = 0;
      for (const torch::Tensor& parameter : net->parameters()) {
        all += parameter.nbytes();
        const bool mine = (*optimizer)->OwnerOf(parameter) == communicator.rank();
        EXPECT_EQ(parameter.grad().defined(), mine);
        if (parameter.grad().defined()) here += parameter.grad().nbytes();
      }
      EXPECT_LE(here, 1.1 * static_cast<double>(all) / kRanks);
      const auto norm = (*optimizer)->ClipGradNorm(1e-3);
      ASSERT_OK(norm);
      EXPECT_GT(*norm, 0);
      ASSERT_OK((*optimizer)->Step());
    }
    ASSERT_OK((*model)->CheckParametersEqual(kLong));
  });
}

TEST_P(ShardedDataParallelTraining, SkipsWhatIsNotFinite) {
  OnEachRank(2, [&](Communicator& communicator) {
    const auto net = MakeNet(communicator);
    const auto plain = MakeOptimizer(kind(), net->parameters());
    auto optimizer =
        ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
    ASSERT_OK(optimizer);
    DataParallelOptions options = Options();
    options.reducer.non_finite = NonFinite::kSkip;
    auto model = Model::Create(net, **optimizer, options);
    ASSERT_OK(model);
    for (int step = 0; step < 4; ++step) {
      const bool bad = step == 1 && communicator.rank() == 1;
      const float factor = bad ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
      ((*model)->forward(Input(communicator, step)) * factor).mean().backward();
      const auto report = (*model)->Finish();
      ASSERT_OK(report);
      EXPECT_EQ(report->skipped, step == 1);
      if (report->skipped) {
        EXPECT_THAT(report->reason, HasSubstr("rank 1 of 'layer"));
        continue;
      }
      ASSERT_OK((*optimizer)->Step());
    }
    ASSERT_OK((*model)->CheckParametersEqual(kLong));
    for (const torch::Tensor& value : ParametersOf(*net)) {
      EXPECT_TRUE(torch::isfinite(value).all().item<bool>());
    }
  });
}

TEST_P(ShardedDataParallelTraining, ASecondBackwardPassIsAnError) {
  OnEachRank(2, [&](Communicator& communicator) {
    const auto net = MakeNet(communicator);
    const auto plain = MakeOptimizer(kind(), net->parameters());
    auto optimizer =
        ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
    ASSERT_OK(optimizer);
    auto model = Model::Create(net, **optimizer, Options());
    ASSERT_OK(model);
    const torch::Tensor loss = (*model)->forward(Input(communicator, 0)).mean();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_FALSE((*model)->Finish().ok());
  });
}

// A model that makes mistakes.
struct Trained {
  std::shared_ptr<ShardedNet> net;
  std::unique_ptr<torch::optim::Optimizer> plain;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::unique_ptr<Model> model;

  explicit Trained(Communicator& communicator) : net(std::make_shared<ShardedNet>()) {
    plain = MakeOptimizer(Kind::kAdam, net->parameters());
    optimizer = *ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions());
    model = *Model::Create(net, *optimizer, SmallBuckets());
  }
  void Backward(int step = 0) {
    model->forward(InputFor(0, step, torch::kCPU)).pow(2).mean().backward();
  }
};

TEST(ShardedDataParallel, AnOptimizerThatIsNotShardedIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    Trained trained(communicator);
    trained.Backward();
    ASSERT_OK(trained.model->Finish());
    trained.plain->step();
    trained.Backward(1);
    EXPECT_THAT(trained.model->Finish(),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("parameters changed after step 1"),
                               HasSubstr("works with a ShardedOptimizer only"))));
  });
}

TEST(ShardedDataParallel, AStepWithoutAReductionIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    Trained trained(communicator);
    trained.Backward();
    ASSERT_OK(trained.model->Finish());
    ASSERT_OK(trained.optimizer->Step());
    {
      const Model::NoSync no_sync(*trained.model);
      trained.Backward(1);
    }
    EXPECT_THAT(trained.optimizer->Step(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("without a reduction")));
  });
}

TEST(ShardedDataParallel, AParameterWithoutAnOwnerIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<ShardedNet>();
    auto parameters = net->parameters();
    parameters.pop_back();
    const auto plain = MakeOptimizer(Kind::kAdam, parameters);
    auto optimizer = ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    EXPECT_THAT(Model::Create(net, **optimizer, SmallBuckets()).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank " + std::to_string(communicator.rank())),
                               HasSubstr("'layer4.bias'"))));
  });
}

TEST(ShardedDataParallel, ACommunicationHookIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<ShardedNet>();
    const auto plain = MakeOptimizer(Kind::kAdam, net->parameters());
    auto optimizer = ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    DataParallelOptions options = SmallBuckets();
    options.reducer.hook = hooks::Fp16Hook();
    EXPECT_THAT(Model::Create(net, **optimizer, options).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("communication hook")));
  });
}

TEST(ShardedDataParallel, ARankThatIsGoneIsAnErrorOfTheOthers) {
  OnEachRank(3, [](Communicator& communicator) {
    Trained trained(communicator);
    trained.Backward();
    if (communicator.rank() == 2) {
      communicator.Abort();
      return;
    }
    EXPECT_FALSE(trained.model->Finish().ok());
    EXPECT_FALSE(trained.optimizer->Step().ok());
  });
}

}  // namespace
}  // namespace cadre::nn
