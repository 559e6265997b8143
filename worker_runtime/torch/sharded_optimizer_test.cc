#include "cadre/torch/sharded_optimizer.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
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
  // Rank 0's parameters after some steps, with and without sharding.
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
    ExpectSame(Train(ranks, true, 50), Train(ranks, false, 50));
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
      // The same gradients on all ranks.
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
      // Less than the bound: nothing changes.
      const auto again = (*optimizer)->ClipGradNorm(1);
      ASSERT_OK(again);
      EXPECT_LT(*again, 1);
      EXPECT_THAT((*optimizer)->ClipGradNorm(1, 0), StatusIs(StatusCode::kInvalidArgument));
    }
  });
}

// Of ZeRO's table: 8 bytes of state for each parameter in float32, over the ranks.
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

// Adagrad makes its state when it is made itself.
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

// What Create() says on rank 1 of two, where rank 1 does `different`.
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

// What Step() says on rank 1 after `change`.
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

}  // namespace
}  // namespace cadre::nn
