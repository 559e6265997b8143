#include "cadre/torch/meta_device.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/modules/rnn.h"
#include "worker_runtime/torch/fully_sharded/fully_sharded_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The net has modules that are initialized in different ways, a tied weight, and buffers of all
// kinds.
struct Attention : torch::nn::Module {
  explicit Attention(int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    attention = register_module("attention", torch::nn::MultiheadAttention(width, 2));
    rectifier = register_module("rectifier", torch::nn::PReLU());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm(x);
    return x + rectifier(std::get<0>(attention(y, y, y)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::PReLU rectifier{nullptr};
};

// The weight is the embedding's own.
struct Tied : torch::nn::Module {
  explicit Tied(const torch::Tensor& known) { weight = register_parameter("weight", known); }
  torch::Tensor weight;
};

struct AllKinds : torch::nn::Module {
  AllKinds() {
    tokens = register_module("tokens", torch::nn::Embedding(16, 8));
    register_module("block0", std::make_shared<Attention>(8));
    register_module("block1", std::make_shared<Attention>(8));
    register_module("rnn", torch::nn::LSTM(torch::nn::LSTMOptions(8, 8)));
    register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(8, 8, 3)));
    register_module("norm", torch::nn::BatchNorm1d(8));
    register_module("head", std::make_shared<Tied>(tokens->weight));
    register_module("last", torch::nn::Linear(8, 16));
  }
  torch::nn::Embedding tokens{nullptr};
};

template <typename Net, typename... Args>
std::shared_ptr<Net> OnMeta(Args&&... args) {
  const OnMetaDevice without_memory;
  return std::make_shared<Net>(std::forward<Args>(args)...);
}

TEST(OnMeta, AModelThatNoHostHolds) {
  const auto net = OnMeta<torch::nn::LinearImpl>(int64_t{1} << 20, int64_t{1} << 20);
  EXPECT_EQ(net->weight.sizes(), torch::IntArrayRef({1 << 20, 1 << 20}));
  EXPECT_TRUE(net->weight.is_meta());
  EXPECT_TRUE(net->weight.is_leaf() && net->weight.requires_grad());
  EXPECT_TRUE(torch::zeros({1}).is_cpu());
}

TEST(OnMeta, NotWhatNamesItsDevice_OrIsMadeOfAnotherTensor) {
  const torch::Tensor before = torch::ones({3});
  const OnMetaDevice without_memory;
  EXPECT_TRUE(torch::randn({3}).is_meta());
  EXPECT_TRUE(torch::arange(3).is_meta());
  EXPECT_TRUE(torch::ones({3}, torch::kCPU).is_cpu());
  EXPECT_TRUE(torch::tensor({1, 2}).is_cpu());
  EXPECT_TRUE(torch::zeros_like(before).is_cpu());
  EXPECT_EQ((before * 2 + 1).sum().item<float>(), 9);
}

TEST(OnMeta, TheMemoryComesToTheSameTensor) {
  const auto net = OnMeta<torch::nn::LinearImpl>(4, 3);
  const torch::Tensor known = net->weight;
  GiveMemory(known, torch::kCPU);
  GiveMemory(net->bias, torch::kCPU);
  EXPECT_TRUE(ResetParameters(*net));
  EXPECT_TRUE(known.is_same(net->weight));
  net->forward(torch::ones({2, 4})).sum().backward();
  EXPECT_TRUE(known.grad().equal(torch::full({3, 4}, 2.)));
}

// Sets the values that UnitNet's constructor sets.
bool Fill(torch::nn::Module& module, int seed) {
  for (torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    parameter.copy_(0.2 * (torch::arange(parameter.numel()) * 0.7 + seed).sin().view_as(parameter));
  }
  return true;
}

void ExpectSameState(const torch::nn::Module& ours, const torch::nn::Module& theirs) {
  for (const auto& item : theirs.named_parameters()) {
    EXPECT_TRUE(ours.named_parameters()[item.key()].equal(item.value())) << item.key();
  }
  for (const auto& item : theirs.named_buffers()) {
    EXPECT_TRUE(ours.named_buffers()[item.key()].equal(item.value())) << item.key();
  }
}

TEST(OnMeta, AModelBeginsAsItWouldOnTheHost) {
  torch::manual_seed(7);
  const AllKinds whole;
  torch::manual_seed(7);
  const auto net = OnMeta<AllKinds>();
  ASSERT_OK(InitializeOn(*net, torch::kCPU, ResetParameters));
  ExpectSameState(*net, whole);
}

TEST(FullyShardedOnMeta, BeginsAsItWouldOnTheHost) {
  OnEachRank(1, [](Communicator& communicator) {
    torch::manual_seed(7);
    const AllKinds whole;
    torch::manual_seed(7);
    const auto net = OnMeta<AllKinds>();
    FullyShardedOptions options = UnitOptions();
    options.initialize = ResetParameters;
    const auto model = FullySharded<AllKinds>::Create(net, {"block0", "block1", "block1.norm"},
                                                      communicator, options);
    ASSERT_OK(model);
    const auto full = FullySharded<AllKinds>::FullParameters::Gather(**model);
    ASSERT_OK(full);
    ExpectSameState(*net, whole);
  });
}

class OnMetaOf : public FullyShardedTraining {
 protected:
  static FullyShardedOptions OptionsFor(const Communicator& communicator) {
    FullyShardedOptions options = UnitOptions(where());
    options.device = DeviceFor(where(), communicator);
    options.initialize = [seed = 1 + communicator.rank()](torch::nn::Module& module) {
      return Fill(module, seed);
    };
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, OnMetaOf,
                         ::testing::Combine(::testing::Values(Where::kHost, Where::kThroughHost,
                                                              Where::kOnDevice),
                                            ::testing::Values(Kind::kAdam)));

TEST_P(OnMetaOf, TrainsAsIfItHadBegunOnItsDevice) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    RanksValues values(static_cast<size_t>(ranks));
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = OnMeta<UnitNet>();
      auto model = Model::Create(net, net->units(), communicator, OptionsFor(communicator));
      ASSERT_OK(model);
      values[static_cast<size_t>(communicator.rank())] =
          Trained(communicator, **model, 3, kOnePass);
    });
    ExpectClose(values, Unsharded(ranks, 3, kOnePass), ranks <= 2);
  }
}

TEST_P(OnMetaOf, HasNoMoreThanTheRootAndOneUnitMeanwhile) {
  if (where() == Where::kHost) GTEST_SKIP() << "the host's memory is not counted";
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = OnMeta<UnitNet>(/*seed=*/1, /*width=*/64);
    const size_t all = ParameterBytes(*net), block = ParameterBytes(*net->blocks[0]);
    const size_t before = pretend::LiveBytes();
    size_t most = 0;
    FullyShardedOptions options = OptionsFor(communicator);
    options.initialize = [&most](torch::nn::Module& module) {
      most = std::max(most, pretend::LiveBytes());
      return Fill(module, 1);
    };
    const auto model = Model::Create(net, net->units(), communicator, options);
    ASSERT_OK(model);
    const size_t root = all - net->blocks.size() * block;
    EXPECT_GE(most - before, all + block);
    EXPECT_LE(most - before, 1.05 * static_cast<double>(all + root + block));
  });
}

TEST(FullyShardedOnMetaErrors, AModuleOfWhichNothingIsKnown_IsNamed) {
  struct Scale : torch::nn::Module {
    Scale() { register_parameter("scale", torch::ones({4})); }
    torch::Tensor forward(const torch::Tensor& x) { return x; }
  };
  struct Net : torch::nn::Module {
    Net() { register_module("last", std::make_shared<Scale>()); }
    torch::Tensor forward(const torch::Tensor& x) { return x; }
  };
  OnEachRank(2, [](Communicator& communicator) {
    FullyShardedOptions options = UnitOptions();
    options.initialize = ResetParameters;
    EXPECT_THAT(FullySharded<Net>::Create(OnMeta<Net>(), {}, communicator, options),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank "), HasSubstr("'last'"), HasSubstr("Scale"))));
  });
}

TEST(FullyShardedOnMetaErrors, FirstValuesOfWhichNothingIsSaid) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = OnMeta<UnitNet>();
    EXPECT_THAT(FullySharded<UnitNet>::Create(net, net->units(), communicator, UnitOptions()),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0"), HasSubstr("meta"),
                               HasSubstr("FullyShardedOptions::initialize"))));
  });
}

TEST(FullyShardedOnMetaErrors, WhatInitializeThrows_AndWhatItLeavesOut) {
  OnEachRank(1, [](Communicator& communicator) {
    FullyShardedOptions options = UnitOptions();
    options.initialize = [](torch::nn::Module&) -> bool { throw std::runtime_error("no file"); };
    EXPECT_THAT(FullySharded<UnitNet>::Create(OnMeta<UnitNet>(), {}, communicator, options),
                StatusIs(StatusCode::kInternal,
                         AllOf(HasSubstr("rank 0"),
                               HasSubstr("'stem', a torch::nn::LinearImpl: no file"))));
  });
  OnEachRank(1, [](Communicator& communicator) {
    FullyShardedOptions options = UnitOptions();
    options.initialize = [](torch::nn::Module&) { return true; };
    const auto model = FullySharded<UnitNet>::Create(OnMeta<UnitNet>(), {}, communicator, options);
    ASSERT_OK(model);
    EXPECT_TRUE((*model)->forward(InputFor(0, 0, torch::kCPU)).isnan().all().item<bool>());
  });
}

TEST(FullyShardedOnMetaErrors, WrappersThatDoNotInitialize) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = OnMeta<UnitNet>();
    const auto names_it = StatusIs(
        StatusCode::kInvalidArgument,
        AllOf(HasSubstr("'stem.weight'"), HasSubstr("meta device"), HasSubstr("InitializeOn()")));
    EXPECT_THAT(DataParallel<UnitNet>::Create(net, communicator), names_it);
    const auto optimizer = MakeOptimizer(Kind::kSgd, net->parameters());
    EXPECT_THAT(ShardedOptimizer::Create(*net, *optimizer, communicator), names_it);
  });
}

TEST(FullyShardedOnMetaErrors, ADeviceForAModelThatIsOnAnother) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    FullyShardedOptions options = UnitOptions();
    options.device = pretend::Device();
    EXPECT_THAT(FullySharded<UnitNet>::Create(net, net->units(), communicator, options),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0"), HasSubstr("is on cpu"), HasSubstr("meta"))));
  });
}

TEST(FullyShardedOnMetaErrors, OneRankAlone) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = communicator.rank() == 0 ? std::make_shared<UnitNet>() : OnMeta<UnitNet>();
    FullyShardedOptions options = UnitOptions();
    options.initialize = ResetParameters;
    EXPECT_THAT(FullySharded<UnitNet>::Create(net, net->units(), communicator, options),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 1"), HasSubstr("stem.weight"))));
  });
}

}  // namespace
}  // namespace cadre::nn
