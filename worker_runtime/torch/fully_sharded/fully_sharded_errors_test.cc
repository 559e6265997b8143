// What is wrong with a fully sharded model, and that it is said.
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/fully_sharded.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/optim/lbfgs.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Model = FullySharded<UnitNet>;

torch::Tensor Input() { return InputFor(0, 0, torch::kCPU); }

std::string RankOf(const Communicator& communicator) {
  return "rank " + std::to_string(communicator.rank());
}

TEST(FullyShardedErrors, AParameterThatTwoUnitsShare) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    net->blocks[2]->register_parameter("tied", net->blocks[1]->inner->weight);
    EXPECT_THAT(Model::Create(net, net->units(), communicator, UnitOptions()).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(RankOf(communicator)), HasSubstr("'block2.tied'"),
                               HasSubstr("'block1.inner.weight'"), HasSubstr("two units"))));
  });
}

TEST(FullyShardedErrors, ASubmoduleThatIsNotThere) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(Model::Create(net, {"block0", "block9"}, communicator, UnitOptions()).status(),
                StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr(RankOf(communicator)),
                                                             HasSubstr("no submodule 'block9'"))));
  });
}

TEST(FullyShardedErrors, RanksThatWrapDifferently) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    std::vector<std::string> units = net->units();
    if (communicator.rank() == 1) units.erase(units.begin() + 1);
    EXPECT_THAT(Model::Create(net, units, communicator, UnitOptions()).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'block1.inner.weight'"), HasSubstr("rank 1"),
                               HasSubstr("unit block1"), HasSubstr("the root unit"))));
  });
}

TEST(FullyShardedErrors, AUnitThatIsNamedTwice) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(Model::Create(net, {"block0", "block0"}, communicator, UnitOptions()).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("'block0' twice")));
  });
}

TEST(FullyShardedErrors, AModuleThatIsNull) {
  OnEachRank(1, [](Communicator& communicator) {
    EXPECT_THAT(Model::Create(nullptr, {}, communicator, UnitOptions()).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("is null")));
  });
}

TEST(FullyShardedErrors, ATimeoutOfZero) {
  OnEachRank(2, [](Communicator& communicator) {
    FullyShardedOptions options = UnitOptions();
    options.timeout = std::chrono::seconds(0);
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(
        Model::Create(net, net->units(), communicator, options).status(),
        StatusIs(StatusCode::kInvalidArgument, HasSubstr("FullyShardedOptions::timeout is 0 ns")));
  });
}

// Rank 1 may call its last two units the other way round, which are of one size.
struct SwappingNet : UnitNet {
  torch::Tensor forward(torch::Tensor x) {
    if (swaps) std::swap(blocks[2], blocks[3]);
    return UnitNet::forward(std::move(x));
  }
  bool swaps = false;
};

TEST(FullyShardedErrors, RanksThatCallTheirUnitsInDifferentOrders) {
  for (const int first_swap : {0, 2}) {
    OnEachRank(2, [&](Communicator& communicator) {
      const auto net = std::make_shared<SwappingNet>();
      auto model =
          FullySharded<SwappingNet>::Create(net, net->units(), communicator, UnitOptions());
      ASSERT_OK(model);
      Status status;
      for (int step = 0; step < 4 && status.ok(); ++step) {
        net->swaps = communicator.rank() == 1 && step == first_swap;
        (*model)->forward(Input()).mean().backward();
        status = (*model)->Finish();
        EXPECT_EQ(status.ok(), step < first_swap) << step;
      }
      if (first_swap > 0) return;
      EXPECT_THAT(status,
                  StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(RankOf(communicator)), HasSubstr("different orders"))));
    });
  }
}

TEST(FullyShardedErrors, AModelThatIsShardedAlready) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    const auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    EXPECT_THAT(
        Model::Create(net, net->units(), communicator, UnitOptions()).status(),
        StatusIs(StatusCode::kFailedPrecondition, HasSubstr("another FullySharded model already")));
  });
}

TEST(FullyShardedErrors, AnOptimizerThatWasMadeBefore) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    const auto before = MakeOptimizer(Kind::kAdam, net->parameters());
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    (*model)->forward(Input()).mean().backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_THAT((*model)->Step(*before),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(RankOf(communicator)), HasSubstr("'stem.weight' itself"),
                               HasSubstr("over shards()"))));
  });
}

TEST(FullyShardedErrors, AnOptimizerThatStepsAllTogether) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    torch::optim::LBFGS lbfgs((*model)->shards());
    (*model)->forward(Input()).mean().backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_THAT((*model)->Step(lbfgs), StatusIs(StatusCode::kInvalidArgument, HasSubstr("LBFGS")));
  });
}

// Calls a block as if it were no unit, or looks at its weight.
struct CarelessNet : UnitNet {
  explicit CarelessNet(bool silent) : silent(silent) {}
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor out = UnitNet::forward(x);
    if (silent) return out + 1e-3 * blocks[2]->outer->weight.pow(2).sum();
    return out + blocks[2]->forward(stem(x)).sum(1);
  }
  const bool silent;
};

TEST(FullyShardedErrors, AParameterThatIsUsedOutsideItsUnit) {
  for (const bool silent : {true, false}) {
    OnEachRank(2, [silent](Communicator& communicator) {
      const auto net = std::make_shared<CarelessNet>(silent);
      auto model =
          FullySharded<CarelessNet>::Create(net, net->units(), communicator, UnitOptions());
      ASSERT_OK(model);
      const auto names_it =
          AllOf(HasSubstr(RankOf(communicator)),
                HasSubstr(silent ? "'block2.outer.weight'" : "'block2.inner.weight'"),
                HasSubstr("outside its unit"));
      try {
        (void)(*model)->forward(Input());
        EXPECT_TRUE(silent);
      } catch (const std::exception& error) {
        EXPECT_FALSE(silent);
        EXPECT_THAT(error.what(), names_it);
      }
      EXPECT_THAT((*model)->Finish(), StatusIs(StatusCode::kInvalidArgument, names_it));
    });
  }
}

// Whether libtorch finds its gradient wrong, as here, or not, as of one element.
TEST(FullyShardedErrors, AParameterThatTheLossUses) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    const torch::Tensor output = (*model)->forward(Input());
    const torch::Tensor loss = output.mean() + net->blocks[1]->inner->weight.pow(2).sum();
    try {
      loss.backward();
    } catch (const std::exception&) {
    }
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0"), HasSubstr("'block1.inner.weight'"),
                               HasSubstr("outside its unit"))));
  });
}

TEST(FullyShardedErrors, StepsWithoutWhatComesBefore) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(Kind::kAdam, (*model)->shards());
    EXPECT_THAT((*model)->Finish(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("without a backward pass")));
    EXPECT_FALSE((*model)->ClipGradNorm(-1).ok());
    {
      const Model::NoSync no_sync(**model);
      (*model)->forward(Input()).mean().backward();
      ASSERT_OK((*model)->Finish());
    }
    EXPECT_THAT((*model)->Step(*optimizer),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("NoSync")));
  });
}

// As a loss that is too large for the memory would, on all ranks alike.
void ThrowHalfWayBack(Model& model, const torch::Tensor& batch) {
  const torch::Tensor input = (100 * batch).requires_grad_(true);
  const torch::Tensor on_its_way = input * 1;
  on_its_way.register_hook([](const torch::Tensor&) -> void { throw std::runtime_error("full"); });
  EXPECT_THROW(model.forward(on_its_way).mean().backward(), std::exception);
}

TEST(FullyShardedErrors, ZeroGradClearsWhatABackwardPassThatThrewHadSent) {
  for (const int ranks : {1, 2}) {
    for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
      OnEachRank(ranks, [where](Communicator& communicator) {
        std::vector<torch::Tensor> gradients[2];
        for (const bool throws : {false, true}) {
          const torch::Device device = DeviceFor(where, communicator);
          const auto net = std::make_shared<UnitNet>();
          net->to(device);
          auto model = Model::Create(net, net->units(), communicator, UnitOptions(where));
          ASSERT_OK(model);
          if (throws) {
            ThrowHalfWayBack(**model, InputFor(0, 0, device));
            (*model)->ZeroGrad();
          }
          (*model)->forward(InputFor(0, 0, device)).mean().backward();
          ASSERT_OK((*model)->Finish());
          for (const torch::Tensor& shard : (*model)->shards()) {
            gradients[throws].push_back(shard.grad().cpu());
          }
        }
        for (size_t i = 0; i < gradients[0].size(); ++i) {
          EXPECT_TRUE(torch::equal(gradients[0][i], gradients[1][i])) << i;
        }
      });
    }
  }
}

// All others come to the end of their passes, and hear of it: of devices some calls later.
TEST(FullyShardedErrors, ARankThatIsGone) {
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    OnEachRank(3, [where](Communicator& communicator) {
      UnitRank rank(where, communicator);
      const torch::Tensor loss = rank.Loss();
      if (communicator.rank() == 2) {
        communicator.Abort();
        return;
      }
      rank.ExpectToHear(loss);
    });
  }
}

}  // namespace
}  // namespace cadre::nn
