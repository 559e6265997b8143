#include "cadre/torch/fully_sharded.h"

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/fully_sharded_training_for_test.h"

namespace cadre::nn {
namespace {

INSTANTIATE_TEST_SUITE_P(Each, FullyShardedTraining, EachWayAndKind(), NameOf);

TEST_P(FullyShardedTraining, IsAsUnsharded) {
  for (const int ranks : {1, 2, 3, 4}) {
    ExpectAsUnsharded(ranks, 50, kOnePass);
  }
}

TEST_P(FullyShardedTraining, WithParametersThatStayForTheBackwardPass) {
  FullyShardedOptions options = UnitOptions(where());
  options.reshard_after_forward = false;
  ExpectAsUnsharded(2, 6, kOnePass, options);
}

TEST_P(FullyShardedTraining, WithoutRoomForPrefetches) {
  FullyShardedOptions options = UnitOptions(where());
  options.most_gathered_bytes = 0;
  ExpectAsUnsharded(2, 6, kOnePass, options);
}

TEST_P(FullyShardedTraining, AddsUpInsideNoSync) {
  ExpectAsUnsharded(2, 5, [](Communicator& communicator, auto& model, int step) {
    {
      const typename std::decay_t<decltype(model)>::NoSync no_sync(model);
      OnePass(communicator, model, step + 100);
      OnePass(communicator, model, step + 200);
    }
    OnePass(communicator, model, step);
  });
}

// Units run forward twice before they run backward, and passes that have no backward pass.
TEST_P(FullyShardedTraining, WithSeveralForwardPasses) {
  const auto ours = Sharded(
      2, 6,
      [](Communicator& communicator, Model& model, int step) {
        (void)model.forward(Input(communicator, step + 300));
        {
          const torch::NoGradGuard no_grad;
          (void)model.forward(Input(communicator, step + 400));
        }
        const torch::Tensor one = model.forward(Input(communicator, step));
        const torch::Tensor other = model.forward(Input(communicator, step + 50), 1);
        (one.pow(2).mean() + other.mean()).backward();
        ASSERT_OK(model.Finish());
      },
      UnitOptions(where()));
  const auto theirs = Unsharded(2, 6, [](Communicator& communicator, Whole& model, int step) {
    const torch::Tensor one = model.forward(Input(communicator, step));
    const torch::Tensor other = model.module().forward(Input(communicator, step + 50), 1);
    (one.pow(2).mean() + other.mean()).backward();
    ASSERT_OK(model.Finish());
  });
  ExpectClose(ours, theirs, true);
}

// The order that was learnt does not hold any more.
TEST_P(FullyShardedTraining, WithUnitsThatSomeStepsSkip) {
  const auto passes = [](Communicator& communicator, auto& model, int step) {
    const size_t skipped = step < 2 ? 0 : 2;
    model.forward(Input(communicator, step), skipped).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  };
  const auto ours = Sharded(2, 5, passes, UnitOptions(where()));
  ExpectClose(ours, Unsharded(2, 5, passes), true);
}

// A unit within another one, one whose parameters are all frozen, and one with some that are.
TEST_P(FullyShardedTraining, WithUnitsWithinUnitsAndFrozenParameters) {
  RanksValues values[2];
  for (const bool sharded : {true, false}) {
    values[sharded].resize(2);
    OnEachRank(2, [&](Communicator& communicator) {
      const auto net = MakeUnits(communicator);
      for (torch::Tensor& frozen : net->blocks[2]->parameters()) frozen.set_requires_grad(false);
      net->blocks[1]->outer->bias.set_requires_grad(false);
      std::vector<std::string> units = net->units();
      units.push_back("block1.inner");
      if (sharded) {
        auto model = Model::Create(net, units, communicator, UnitOptions(where()));
        ASSERT_OK(model);
        const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
        for (int step = 0; step < 5; ++step) {
          OnePass(communicator, **model, step);
          EXPECT_EQ((*model)->gathered_bytes(), 0u);
          ASSERT_OK((*model)->Step(*optimizer));
          (*model)->ZeroGrad();
        }
        const auto full = Model::FullParameters::Gather(**model);
        ASSERT_OK(full);
        values[sharded][static_cast<size_t>(communicator.rank())] = ParametersOf(*net);
        return;
      }
      auto model = Whole::Create(net, communicator, Options());
      ASSERT_OK(model);
      // Rank 0's, which data-parallel training does not send for frozen ones.
      UnitNet first(1);
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        net->parameters()[i].copy_(first.parameters()[i]);
      }
      const torch::AutoGradMode grad(true);
      const auto optimizer = MakeOptimizer(kind(), net->parameters());
      for (int step = 0; step < 5; ++step) {
        OnePass(communicator, **model, step);
        optimizer->step();
        (*model)->ZeroGrad();
      }
      values[sharded][static_cast<size_t>(communicator.rank())] = ParametersOf(*net);
    });
  }
  ExpectClose(values[true], values[false], true);
}

TEST_P(FullyShardedTraining, ClipsByTheNormOfTheWhole) {
  ExpectAsUnsharded(2, 6, kOnePass, UnitOptions(where()), 0.05);
}

// As one that computes in bfloat16 by hand, and keeps float32 for its optimizer. All ranks have the
// same data, so that their average is what each has.
TEST_P(FullyShardedTraining, InTwoPrecisions) {
  const auto master = std::make_shared<UnitNet>();
  const auto low = std::make_shared<UnitNet>();
  low->to(torch::kBFloat16);
  const auto plain = MakeOptimizer(kind(), master->parameters());
  const auto input = [](int step) { return InputFor(0, step, torch::kCPU).to(torch::kBFloat16); };
  for (int step = 0; step < 5; ++step) {
    const auto of_master = master->parameters(), of_low = low->parameters();
    for (size_t i = 0; i < of_low.size(); ++i) of_low[i].detach().copy_(of_master[i].detach());
    low->zero_grad();
    low->forward(input(step)).pow(2).mean().backward();
    for (size_t i = 0; i < of_low.size(); ++i) {
      torch::Tensor(of_master[i]).mutable_grad() = of_low[i].grad().to(torch::kFloat32);
    }
    plain->step();
  }
  for (const int ranks : {1, 2}) {
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = std::make_shared<UnitNet>();
      net->to(DeviceFor(where(), communicator));
      FullyShardedOptions options = UnitOptions(where());
      options.parameter_type = torch::kBFloat16;
      options.reduction_type = torch::kFloat32;
      auto model = Model::Create(net, net->units(), communicator, options);
      ASSERT_OK(model);
      const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
      for (int step = 0; step < 5; ++step) {
        const torch::Tensor here = input(step).to(DeviceFor(where(), communicator));
        const torch::Tensor output = (*model)->forward(here);
        EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
        output.pow(2).mean().backward();
        ASSERT_OK((*model)->Finish());
        ASSERT_OK((*model)->Step(*optimizer));
        (*model)->ZeroGrad();
      }
      torch::serialize::OutputArchive archive;
      ASSERT_OK((*model)->SaveState(archive));
      if (communicator.rank() > 0) return;
      UnitNet saved(7);
      auto again = ArchiveOf(TextOf(archive));
      saved.load(again);
      ExpectSame(ParametersOf(saved), ParametersOf(*master));
    });
  }
}

// Of ZeRO's table: (4 + 4 + 8) bytes for each parameter in float32 with Adam, over the ranks.
TEST_P(FullyShardedTraining, LeavesEachRankItsPart) { ExpectAPartOnEachRank(4, 0); }

TEST_P(FullyShardedTraining, GathersTheRootTheRunningUnitAndTheNext) {
  OnEachRank(2, [&](Communicator& communicator) {
    for (const bool may_prefetch : {true, false}) {
      const auto net = MakeUnits(communicator, 32);
      size_t root = 0, block = 0;
      for (const auto& item : net->named_parameters()) {
        if (item.key().rfind("block", 0) != 0) root += item.value().nbytes();
        if (item.key().rfind("block0", 0) == 0) block += item.value().nbytes();
      }
      FullyShardedOptions options = UnitOptions(where());
      // Each parameter begins at a multiple of 64 bytes.
      const size_t margin = 4 * 64 + 2 * 64;
      if (!may_prefetch) options.most_gathered_bytes = root + block + 2 * margin;
      auto model = Model::Create(net, net->units(), communicator, options);
      ASSERT_OK(model);
      const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
      for (int step = 0; step < 3; ++step) {
        OnePass(communicator, **model, step);
        ASSERT_OK((*model)->Step(*optimizer));
        (*model)->ZeroGrad();
        // Nothing goes back through these units.
        (void)(*model)->forward(Input(communicator, step + 100));
      }
      const size_t units = may_prefetch ? 2 : 1;
      EXPECT_GE((*model)->most_gathered_bytes(), root + units * block);
      EXPECT_LE((*model)->most_gathered_bytes(), root + units * block + 3 * margin);
    }
  });
}

}  // namespace
}  // namespace cadre::nn
