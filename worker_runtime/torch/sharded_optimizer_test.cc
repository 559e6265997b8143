#include "cadre/torch/sharded_optimizer.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/lbfgs.h"
#include "torch/optim/schedulers/step_lr.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Model = DataParallel<ShardedNet>;

TEST(OwnersBySize, TheLargestGoToWhoHasLeast) {
  EXPECT_THAT(OwnersBySize({1, 8, 3, 5, 4}, 2), ElementsAre(1, 0, 0, 1, 1));
  EXPECT_THAT(OwnersBySize({4, 4, 4}, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(OwnersBySize({7, 0}, 1), ElementsAre(0, 0));
}

class ShardedOptimizerTraining : public ShardedTraining {
 protected:
  // Returns rank 0's parameters after some steps, with or without sharding.
  static std::vector<torch::Tensor> Train(int ranks, bool sharded, int steps) {
    std::vector<torch::Tensor> values;
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeNet(communicator);
      auto model = Model::Create(net, communicator, Options());
      ASSERT_OK(model);
      const auto plain = MakeOptimizer(kind(), net->parameters());
      std::unique_ptr<ShardedOptimizer> optimizer;
      if (sharded) {
        auto created =
            ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
        ASSERT_OK(created);
        optimizer = *std::move(created);
      }
      torch::optim::StepLR schedule(*plain, 10, 0.5);
      for (int step = 0; step < steps; ++step) {
        plain->zero_grad();
        (*model)->forward(Input(communicator, step), step % 2).pow(2).mean().backward();
        ASSERT_OK((*model)->Finish());
        if (sharded) {
          ASSERT_OK(optimizer->Step());
        } else {
          plain->step();
        }
        schedule.step();
      }
      ASSERT_OK((*model)->CheckParametersEqual(kLong));
      if (communicator.rank() == 0) values = ParametersOf(*net);
    });
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(Each, ShardedOptimizerTraining, EachWayAndKind(), NameOf);

TEST_P(ShardedOptimizerTraining, GivesTheBitsOfUnshardedTraining) {
  for (const int ranks : {1, 2, 3, 4}) {
    ExpectSame(Train(ranks, true, 12), Train(ranks, false, 12));
  }
}

TEST_P(ShardedOptimizerTraining, ClipsByTheNormOfAllRanks) {
  OnEachRank(3, [&](Communicator& communicator) {
    for (const double type : {2.0, 1.5, std::numeric_limits<double>::infinity()}) {
      const auto net = MakeNet(communicator);
      const auto plain = MakeOptimizer(kind(), net->parameters());
      auto optimizer =
          ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
      ASSERT_OK(optimizer);
      // All ranks have the same gradients.
      const torch::Device device = DeviceFor(where(), communicator);
      net->forward(InputFor(0, 1, device)).pow(2).mean().backward();
      ShardedNet alone;
      alone.forward(InputFor(0, 1, torch::kCPU)).pow(2).mean().backward();
      const double expected = torch::nn::utils::clip_grad_norm_(alone.parameters(), 0.01, type);
      const auto norm = (*optimizer)->ClipGradNorm(0.01, type);
      ASSERT_OK(norm);
      EXPECT_NEAR(*norm, expected, 1e-6 * expected);
      EXPECT_GT(*norm, 0.01) << "or nothing is clipped";
      for (size_t i = 0; i < alone.parameters().size(); ++i) {
        const torch::Tensor ours = net->parameters()[i].grad().cpu();
        EXPECT_TRUE(torch::allclose(ours, alone.parameters()[i].grad(), 1e-5, 1e-9)) << ours;
      }
      // The norm is below the bound, so nothing changes.
      const auto again = (*optimizer)->ClipGradNorm(1);
      ASSERT_OK(again);
      EXPECT_LT(*again, 1);
      EXPECT_THAT((*optimizer)->ClipGradNorm(1, 0), StatusIs(StatusCode::kInvalidArgument));
    }
  });
}

// ZeRO's table: 8 bytes of state for each float32 parameter, divided by the ranks.
TEST(ShardedOptimizer, EachRankKeepsItsShareOfTheState) {
  constexpr int kRanks = 4;
  OnEachRank(kRanks, [](Communicator& communicator) {
    const auto net =
        std::make_shared<ShardedNet>(1, std::vector<int>{12, 64, 64, 64, 64, 64, 64, 64, 64, 8});
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1));
    auto optimizer = ShardedOptimizer::Create(*net, adam, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    net->forward(InputFor(0, 0, torch::kCPU)).sum().backward();
    ASSERT_OK((*optimizer)->Step());
    size_t all = 0;
    for (const torch::Tensor& parameter : net->parameters()) all += 2 * parameter.nbytes();
    const double share = static_cast<double>(all) / kRanks;
    EXPECT_GT((*optimizer)->state_bytes(), 0u);
    EXPECT_LE((*optimizer)->state_bytes(), 1.1 * share);
  });
}

// Adagrad makes its state in its constructor.
TEST(ShardedOptimizer, StateThatWasThereBeforeIsSharded) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<ShardedNet>();
    torch::optim::Adagrad adagrad(net->parameters(), torch::optim::AdagradOptions(0.1));
    ShardedNet alone;
    torch::optim::Adagrad whole(alone.parameters(), torch::optim::AdagradOptions(0.1));
    auto optimizer = ShardedOptimizer::Create(*net, adagrad, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    EXPECT_LT(adagrad.state().size(), whole.state().size());
    for (int step = 0; step < 3; ++step) {
      (*optimizer)->ZeroGrad();
      whole.zero_grad();
      net->forward(InputFor(0, step, torch::kCPU)).sum().backward();
      alone.forward(InputFor(0, step, torch::kCPU)).sum().backward();
      ASSERT_OK((*optimizer)->Step());
      whole.step();
    }
    ExpectSame(ParametersOf(*net), ParametersOf(alone));
  });
}

TEST(ShardedOptimizer, GroupsHaveTheirOwnOptions) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto groups_of = [](ShardedNet& net) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      std::vector<torch::Tensor> weights, biases;
      for (const torch::Tensor& tensor : net.parameters()) {
        (tensor.dim() == 1 ? biases : weights).push_back(tensor);
      }
      groups.emplace_back(weights);
      groups.emplace_back(biases, std::make_unique<torch::optim::AdamWOptions>(0.5));
      return groups;
    };
    const auto net = std::make_shared<ShardedNet>();
    ShardedNet alone;
    const auto adam = MakeOptimizer(Kind::kAdamW, groups_of(*net));
    const auto whole = MakeOptimizer(Kind::kAdamW, groups_of(alone));
    auto optimizer = ShardedOptimizer::Create(*net, *adam, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    for (int step = 0; step < 4; ++step) {
      (*optimizer)->ZeroGrad();
      whole->zero_grad();
      net->forward(InputFor(0, step, torch::kCPU)).sum().backward();
      alone.forward(InputFor(0, step, torch::kCPU)).sum().backward();
      for (auto* one : {adam.get(), whole.get()}) {
        static_cast<torch::optim::AdamWOptions&>(one->param_groups()[0].options())
            .lr(0.1 / (step + 1));
      }
      ASSERT_OK((*optimizer)->Step());
      whole->step();
    }
    ExpectSame(ParametersOf(*net), ParametersOf(alone));
  });
}

// Returns the error of Create() on rank 1 of two, where rank 1 does `different`.
std::string DifferentOnRankOne(
    const std::function<std::unique_ptr<torch::optim::Optimizer>(ShardedNet&, bool)>& make) {
  std::string said;
  OnEachRank(2, [&](Communicator& communicator) {
    ShardedNet net;
    const bool differs = communicator.rank() == 1;
    const auto plain = make(net, differs);
    const auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    EXPECT_FALSE(optimizer.ok());
    if (differs) said = std::string(optimizer.status().message());
  });
  return said;
}

TEST(ShardedOptimizer, RanksThatWrapDifferentlyAreAnError) {
  EXPECT_THAT(DifferentOnRankOne([](ShardedNet& net, bool differs) {
                return MakeOptimizer(differs ? Kind::kSgd : Kind::kAdam, net.parameters());
              }),
              HasSubstr("rank 1 has optimizer torch::optim::SGD, rank 0 has optimizer "
                        "torch::optim::Adam"));
  EXPECT_THAT(DifferentOnRankOne([](ShardedNet& net, bool differs) {
                net.layers[1]->bias.set_requires_grad(!differs);
                return MakeOptimizer(Kind::kAdam, net.parameters());
              }),
              AllOf(HasSubstr("'layer1.bias'"), HasSubstr("kept as frozen")));
  EXPECT_THAT(DifferentOnRankOne([](ShardedNet& net, bool differs) {
                auto parameters = net.parameters();
                if (differs) parameters.pop_back();
                return MakeOptimizer(Kind::kAdam, parameters);
              }),
              AllOf(HasSubstr("rank 1 has 9 parameters"), HasSubstr("'layer4.bias'")));
}

TEST(ShardedOptimizer, AnOptimizerOfOtherParametersIsAnError) {
  EXPECT_THAT(DifferentOnRankOne([](ShardedNet& net, bool differs) {
                ShardedNet other;
                auto parameters = net.parameters();
                if (differs) parameters[2] = other.parameters()[2];
                return MakeOptimizer(Kind::kAdam, parameters);
              }),
              AllOf(HasSubstr("rank 1: parameter 2 of the optimizer's group 0 (Float [16, 24])"),
                    HasSubstr("not one of the module's")));
  EXPECT_THAT(DifferentOnRankOne([](ShardedNet& net, bool differs) {
                auto whole = MakeOptimizer(Kind::kAdam, net.parameters());
                if (differs) {
                  return std::unique_ptr<torch::optim::Optimizer>(
                      std::make_unique<torch::optim::LBFGS>(net.parameters()));
                }
                return whole;
              }),
              HasSubstr("LBFGS"));
}

// Returns the error of Step() on rank 1 after `change`.
std::string AfterChange(const std::function<void(ShardedNet&, torch::optim::Optimizer&)>& change) {
  std::string said;
  OnEachRank(2, [&](Communicator& communicator) {
    ShardedNet net;
    const auto plain = MakeOptimizer(Kind::kAdam, net.parameters());
    auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    net.forward(InputFor(0, 0, torch::kCPU)).sum().backward();
    ASSERT_OK((*optimizer)->Step());
    if (communicator.rank() == 1) change(net, *plain);
    const Status status = (*optimizer)->Step();
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE((*optimizer)->Step().ok()) << "it stays failed";
    if (communicator.rank() != 1) return;
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    said = std::string(status.message());
  });
  return said;
}

TEST(ShardedOptimizer, AParameterThatChangedIsAnError) {
  EXPECT_THAT(AfterChange([](ShardedNet& net, auto&) { net.layers[2]->to(torch::kFloat64); }),
              AllOf(HasSubstr("rank 1: parameter 'layer2.weight'"), HasSubstr("other storage")));
  EXPECT_THAT(
      AfterChange([](ShardedNet& net, auto&) { net.layers[2]->bias.set_requires_grad(false); }),
      AllOf(HasSubstr("rank 1: parameter 'layer2.bias'"), HasSubstr("was frozen")));
  EXPECT_THAT(AfterChange([](auto&, torch::optim::Optimizer& plain) {
                plain.param_groups()[0].params().pop_back();
              }),
              AllOf(HasSubstr("rank 1: parameter 'layer4.bias'"), HasSubstr("taken out")));
  EXPECT_THAT(AfterChange([](auto&, torch::optim::Optimizer& plain) {
                std::swap(plain.param_groups()[0].params()[0], plain.param_groups()[0].params()[1]);
              }),
              AllOf(HasSubstr("rank 1: parameter 'layer0.weight'"), HasSubstr("at its place")));
  EXPECT_THAT(AfterChange([](auto&, torch::optim::Optimizer& plain) {
                plain.add_param_group({{torch::zeros({2}).set_requires_grad(true)}});
              }),
              AllOf(HasSubstr("rank 1: the optimizer's group 1 got a parameter")));
  EXPECT_THAT(AfterChange([](auto&, torch::optim::Optimizer& plain) { plain.step(); }),
              AllOf(HasSubstr("rank 1: parameter 'layer"), HasSubstr("own step()")));
}

TEST(ShardedOptimizer, ARankThatIsGoneIsAnErrorOfTheOthers) {
  OnEachRank(3, [](Communicator& communicator) {
    ShardedNet net;
    const auto plain = MakeOptimizer(Kind::kAdam, net.parameters());
    auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    net.forward(InputFor(0, 0, torch::kCPU)).sum().backward();
    if (communicator.rank() == 2) {
      communicator.Abort();
      return;
    }
    EXPECT_FALSE((*optimizer)->Step().ok());
    torch::serialize::OutputArchive archive;
    EXPECT_FALSE((*optimizer)->SaveState(archive).ok());
    EXPECT_FALSE((*optimizer)->ClipGradNorm(1).ok());
  });
}

using Whole = DataParallel<ShardedNet>;
using ShardedModel = ShardedDataParallel<ShardedNet>;

class ShardedDataParallelTraining : public ShardedTraining {
 protected:
  // Runs the passes of one step, of a model of either kind.
  using Passes = std::function<void(Communicator&, Whole&, int step)>;

  static void OnePass(Communicator& communicator, Whole& model, int step) {
    // Every second step leaves a layer out.
    model.forward(Input(communicator, step), step % 2).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  }

  // Returns each rank's parameters after some steps.
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
        auto wrapped = ShardedModel::Create(net, *optimizer, options);
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
  for (const int ranks : {1, 2, 3, 4}) ExpectAsUnsharded(ranks, 12);
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

// ZeRO's table: 4 bytes of gradient for each float32 parameter, divided by the ranks.
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
    auto model = ShardedModel::Create(net, **optimizer, Options());
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
    auto model = ShardedModel::Create(net, **optimizer, options);
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
    auto model = ShardedModel::Create(net, **optimizer, Options());
    ASSERT_OK(model);
    const torch::Tensor loss = (*model)->forward(Input(communicator, 0)).mean();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_FALSE((*model)->Finish().ok());
  });
}

// A model that a test uses wrongly.
struct Trained {
  std::shared_ptr<ShardedNet> net;
  std::unique_ptr<torch::optim::Optimizer> plain;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::unique_ptr<ShardedModel> model;

  explicit Trained(Communicator& communicator) : net(std::make_shared<ShardedNet>()) {
    plain = MakeOptimizer(Kind::kAdam, net->parameters());
    optimizer = *ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions());
    model = *ShardedModel::Create(net, *optimizer, SmallBuckets());
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
      const ShardedModel::NoSync no_sync(*trained.model);
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
    EXPECT_THAT(ShardedModel::Create(net, **optimizer, SmallBuckets()).status(),
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
    EXPECT_THAT(ShardedModel::Create(net, **optimizer, options).status(),
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

// A sharded optimizer's state is gathered on one rank and loaded again.

namespace {

class ShardedState : public ShardedTraining {};

INSTANTIATE_TEST_SUITE_P(Each, ShardedState, EachWayAndKind(), NameOf);

// The state of three ranks goes on with two, with one, and in an optimizer that was never sharded.
TEST_P(ShardedState, GoesOnWithAnyNumberOfRanks) {
  const auto step_with = [](Model& model, ShardedOptimizer& optimizer, int step) {
    const torch::Device device = DeviceFor(where(), optimizer.communicator());
    optimizer.ZeroGrad();
    // All ranks have the same data, so that their number changes nothing.
    model.forward(InputFor(0, step, device)).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
    ASSERT_OK(optimizer.Step());
  };
  std::string saved;
  std::vector<torch::Tensor> middle, expected;
  const auto run = [&](int ranks, int from, int to) {
    std::vector<torch::Tensor> values;
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeNet(communicator);
      if (from > 0) {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < middle.size(); ++i) net->parameters()[i].copy_(middle[i]);
      }
      auto model = Model::Create(net, communicator, Options());
      ASSERT_OK(model);
      const auto plain = MakeOptimizer(kind(), net->parameters());
      auto optimizer =
          ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
      ASSERT_OK(optimizer);
      if (from > 0) {
        auto archive = ArchiveOf(saved);
        ASSERT_OK((*optimizer)->LoadState(archive));
      }
      const int recipient = ranks - 1;
      for (int step = from; step < to; ++step) {
        step_with(**model, **optimizer, step);
        if (step != 4) continue;
        torch::serialize::OutputArchive archive;
        const size_t before = (*optimizer)->state_bytes();
        ASSERT_OK((*optimizer)->SaveState(archive, recipient));
        EXPECT_EQ((*optimizer)->state_bytes(), before);
        if (communicator.rank() != recipient) continue;
        saved = TextOf(archive);
        middle = ParametersOf(*net);
      }
      if (communicator.rank() == 0) values = ParametersOf(*net);
    });
    return values;
  };
  expected = run(3, 0, 10);
  for (const int ranks : {1, 2, 3, 4}) ExpectClose(run(ranks, 5, 10), expected);
  // libtorch's own load() accepts the state, too.
  ShardedNet alone;
  const auto plain = MakeOptimizer(kind(), alone.parameters());
  auto archive = ArchiveOf(saved);
  plain->load(archive);
  EXPECT_EQ(plain->state().size(), alone.parameters().size());
}

struct Renamed : torch::nn::Module {
  Renamed() { other = register_module("other", torch::nn::Linear(12, 24)); }
  torch::nn::Linear other{nullptr};
};

// Returns the state of a net's optimizer, as one rank alone saves it.
template <typename Net>
std::string SavedState(Net& net, Kind kind) {
  std::string saved;
  OnEachRank(1, [&](Communicator& communicator) {
    const auto plain = MakeOptimizer(kind, net.parameters());
    for (torch::Tensor& parameter : net.parameters()) {
      parameter.mutable_grad() = torch::ones_like(parameter);
    }
    auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    ASSERT_OK((*optimizer)->Step());
    torch::serialize::OutputArchive archive;
    ASSERT_OK((*optimizer)->SaveState(archive));
    saved = TextOf(archive);
  });
  return saved;
}

TEST(ShardedStates, AStateOfAnotherModelIsAnErrorAndChangesNothing) {
  Renamed renamed;
  ShardedNet same;
  const std::string states[] = {SavedState(renamed, Kind::kAdam), SavedState(same, Kind::kSgd)};
  // The state of an optimizer that was never sharded contains no names.
  std::vector<torch::Tensor> others;
  for (const torch::Tensor& parameter : same.parameters()) {
    others.push_back(torch::ones({parameter.numel(), 2}).set_requires_grad(true));
    others.back().mutable_grad() = torch::ones_like(others.back());
  }
  const auto plain_state = [](const std::vector<torch::Tensor>& parameters) {
    const auto plain = MakeOptimizer(Kind::kAdam, parameters);
    plain->step();
    torch::serialize::OutputArchive archive;
    plain->save(archive);
    return TextOf(archive);
  };
  const std::string other_shapes = plain_state(others);
  const std::string fewer = plain_state({others[0]});
  OnEachRank(2, [&](Communicator& communicator) {
    ShardedNet net;
    const auto plain = MakeOptimizer(Kind::kAdam, net.parameters());
    auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    net.forward(InputFor(0, 0, torch::kCPU)).sum().backward();
    ASSERT_OK((*optimizer)->Step());
    const size_t before = (*optimizer)->state_bytes();
    const std::string rank = "rank " + std::to_string(communicator.rank()) + ": ";
    const auto load = [&](const std::string& state) {
      auto archive = ArchiveOf(state);
      return (*optimizer)->LoadState(archive);
    };
    EXPECT_THAT(load(states[0]), StatusIs(StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr(rank), HasSubstr("'other.weight' there"),
                                                HasSubstr("'layer0.weight' in this optimizer"))));
    EXPECT_THAT(load(states[1]),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("is one of torch::optim::SGD")));
    EXPECT_THAT(load(other_shapes), StatusIs(StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr(rank + "the state is of another"),
                                                   HasSubstr("parameter 'layer0.weight'"))));
    EXPECT_THAT(load(fewer), StatusIs(StatusCode::kInvalidArgument, HasSubstr(rank)));
    EXPECT_EQ((*optimizer)->state_bytes(), before);
    EXPECT_OK((*optimizer)->Step());
  });
}

}  // namespace

}  // namespace cadre::nn
