// The whole state of a fully sharded model and its optimizer, saved and loaded again.
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/fully_sharded.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Model = FullySharded<UnitNet>;

struct Saved {
  std::string model;
  std::string optimizer;
};

class FullyShardedState : public ShardedTraining {
 protected:
  static torch::Tensor Loss(torch::Tensor output) { return output.pow(2).mean(); }

  // From step `from`, with what was saved then, to `to`; what was saved in the end. Ranks have the
  // same data, so that their number changes nothing.
  static Saved Run(int ranks, int from, int to, const Saved& before) {
    Saved after;
    OnEachRank(ranks, [&](Communicator& communicator) {
      const torch::Device device = DeviceFor(where(), communicator);
      const auto net = std::make_shared<UnitNet>(1 + communicator.rank());
      net->to(device);
      auto model = Model::Create(net, net->units(), communicator, UnitOptions(where()));
      ASSERT_OK(model);
      const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
      if (from > 0) {
        auto of_model = ArchiveOf(before.model), of_optimizer = ArchiveOf(before.optimizer);
        ASSERT_OK((*model)->LoadState(of_model));
        ASSERT_OK((*model)->LoadOptimizerState(*optimizer, of_optimizer));
      }
      for (int step = from; step < to; ++step) {
        Loss((*model)->forward(InputFor(0, step, device))).backward();
        ASSERT_OK((*model)->Finish());
        ASSERT_OK((*model)->Step(*optimizer));
        (*model)->ZeroGrad();
      }
      const int recipient = ranks - 1;
      torch::serialize::OutputArchive of_model, of_optimizer;
      ASSERT_OK((*model)->SaveState(of_model, recipient));
      ASSERT_OK((*model)->SaveOptimizerState(*optimizer, of_optimizer, recipient));
      EXPECT_EQ((*model)->gathered_bytes(), 0u);
      if (communicator.rank() == recipient) after = {TextOf(of_model), TextOf(of_optimizer)};
    });
    return after;
  }

  static std::vector<torch::Tensor> ValuesOf(const Saved& saved) {
    UnitNet net;
    auto archive = ArchiveOf(saved.model);
    net.load(archive);
    return ParametersOf(net);
  }
};

INSTANTIATE_TEST_SUITE_P(Each, FullyShardedState, EachWayAndKind(), NameOf);

TEST_P(FullyShardedState, GoesOnWithAnyNumberOfRanks) {
  const Saved middle = Run(3, 0, 5, {});
  const std::vector<torch::Tensor> expected = ValuesOf(Run(3, 0, 10, {}));
  for (const int ranks : {1, 2, 3, 4}) ExpectClose(ValuesOf(Run(ranks, 5, 10, middle)), expected);
}

TEST_P(FullyShardedState, GoesOnAsOneThatWasNeverSharded) {
  const Saved middle = Run(2, 0, 5, {});
  UnitNet net(7);
  const auto optimizer = MakeOptimizer(kind(), net.parameters());
  auto of_model = ArchiveOf(middle.model), of_optimizer = ArchiveOf(middle.optimizer);
  net.load(of_model);
  optimizer->load(of_optimizer);
  for (int step = 5; step < 10; ++step) {
    optimizer->zero_grad();
    Loss(net.forward(InputFor(0, step, torch::kCPU))).backward();
    optimizer->step();
  }
  ExpectClose(ParametersOf(net), ValuesOf(Run(2, 0, 10, {})));
}

TEST_P(FullyShardedState, BeginsAsOneThatWasNotSharded) {
  UnitNet net(7);
  const auto optimizer = MakeOptimizer(kind(), net.parameters());
  Saved middle;
  for (int step = 0; step < 10; ++step) {
    if (step == 5) {
      torch::serialize::OutputArchive of_model, of_optimizer;
      net.save(of_model);
      optimizer->save(of_optimizer);
      middle = {TextOf(of_model), TextOf(of_optimizer)};
    }
    optimizer->zero_grad();
    Loss(net.forward(InputFor(0, step, torch::kCPU))).backward();
    optimizer->step();
  }
  ExpectClose(ValuesOf(Run(3, 5, 10, middle)), ParametersOf(net));
}

TEST(FullyShardedStateErrors, AStateOfAnotherModel) {
  OnEachRank(2, [](Communicator& communicator) {
    const std::string rank = "rank " + std::to_string(communicator.rank());
    const auto net = std::make_shared<UnitNet>();
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    torch::serialize::OutputArchive wider, fewer, other;
    UnitNet(1, 11).save(wider);
    UnitNet(1, 10, 3).save(fewer);
    auto archive = ArchiveOf(TextOf(wider));
    EXPECT_THAT(
        (*model)->LoadState(archive),
        StatusIs(StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(rank), HasSubstr("'stem.weight'"), HasSubstr("[11, 12]"))));
    archive = ArchiveOf(TextOf(fewer));
    EXPECT_THAT((*model)->LoadState(archive),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(rank), HasSubstr("'block3.inner.weight'"))));
    const auto optimizer = MakeOptimizer(Kind::kAdam, (*model)->shards());
    UnitNet narrow(1, 11);
    const auto of_narrow = MakeOptimizer(Kind::kAdam, narrow.parameters());
    narrow.forward(InputFor(0, 0, torch::kCPU)).sum().backward();
    of_narrow->step();
    of_narrow->save(other);
    archive = ArchiveOf(TextOf(other));
    EXPECT_THAT(
        (*model)->LoadOptimizerState(*optimizer, archive),
        StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr(rank), HasSubstr("another model"))));
    EXPECT_TRUE(optimizer->state().empty());
    // What there was before stays.
    (*model)->forward(InputFor(0, 0, torch::kCPU)).mean().backward();
    ASSERT_OK((*model)->Finish());
    ASSERT_OK((*model)->Step(*optimizer));
  });
}

TEST(FullyShardedStateErrors, AStateOfAnotherOptimizer) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    const auto adam = MakeOptimizer(Kind::kAdam, (*model)->shards());
    torch::serialize::OutputArchive archive;
    ASSERT_OK((*model)->SaveOptimizerState(*adam, archive, 0));
    if (communicator.rank() != 0) return;
    const auto sgd = MakeOptimizer(Kind::kSgd, (*model)->shards());
    auto saved = ArchiveOf(TextOf(archive));
    EXPECT_THAT((*model)->LoadOptimizerState(*sgd, saved),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("torch::optim::SGD")));
  });
}

// Of a model whose parameters begin as this one's do.
TEST(FullyShardedStateErrors, AStateOfFewerParameters) {
  std::string fewer;
  const auto create = [](Communicator& communicator, bool head_is_frozen) {
    const auto net = std::make_shared<UnitNet>();
    for (torch::Tensor& parameter : net->head->parameters()) {
      parameter.set_requires_grad(!head_is_frozen);
    }
    return Model::Create(net, net->units(), communicator, UnitOptions());
  };
  OnEachRank(1, [&](Communicator& communicator) {
    const auto model = create(communicator, true);
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(Kind::kAdam, (*model)->shards());
    torch::serialize::OutputArchive archive;
    ASSERT_OK((*model)->SaveOptimizerState(*optimizer, archive));
    fewer = TextOf(archive);
  });
  OnEachRank(2, [&](Communicator& communicator) {
    const auto model = create(communicator, false);
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(Kind::kAdam, (*model)->shards());
    auto archive = ArchiveOf(fewer);
    EXPECT_THAT((*model)->LoadOptimizerState(*optimizer, archive),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank " + std::to_string(communicator.rank())),
                               HasSubstr("only the optimizer has 'head.weight'"))));
  });
}

TEST(FullyShardedFullParameters, KeepsWhatWasChanged) {
  OnEachRank(3, [](Communicator& communicator) {
    const auto net = std::make_shared<UnitNet>();
    auto model = Model::Create(net, net->units(), communicator, UnitOptions());
    ASSERT_OK(model);
    for (const bool keep : {true, false}) {
      const auto full = Model::FullParameters::Gather(**model, keep);
      ASSERT_OK(full);
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.fill_(keep ? 0.25 : 7);
    }
    for (const torch::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.numel(), 0);
    const auto full = Model::FullParameters::Gather(**model);
    ASSERT_OK(full);
    for (const torch::Tensor& parameter : net->parameters()) {
      EXPECT_TRUE((parameter == 0.25).all().item<bool>());
    }
  });
}

// What is computed with has 16 bits, and what is kept has not.
TEST(FullyShardedFullParameters, AreOfTheModelsOwnType) {
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    OnEachRank(2, [where](Communicator& communicator) {
      const auto net = std::make_shared<UnitNet>();
      net->to(DeviceFor(where, communicator));
      const std::vector<torch::Tensor> before = ParametersOf(*net);
      FullyShardedOptions options = UnitOptions(where);
      options.parameter_type = torch::kBFloat16;
      auto model = Model::Create(net, net->units(), communicator, options);
      ASSERT_OK(model);
      for (const double change : {0.0, 1e-5}) {
        const auto full = Model::FullParameters::Gather(**model, /*keep=*/true);
        ASSERT_OK(full);
        const std::vector<torch::Tensor> now = ParametersOf(*net);
        for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].equal(before[i])) << i;
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : net->parameters()) parameter.add_(change);
      }
      {
        const auto full = Model::FullParameters::Gather(**model);
        ASSERT_OK(full);
        const std::vector<torch::Tensor> now = ParametersOf(*net);
        for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].equal(before[i] + 1e-5)) << i;
      }
      const torch::Tensor input = InputFor(0, 0, DeviceFor(where, communicator));
      const torch::Tensor output = (*model)->forward(input.to(torch::kBFloat16));
      EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
      output.mean().backward();
      EXPECT_OK((*model)->Finish());
    });
  }
}

}  // namespace
}  // namespace cadre::nn
