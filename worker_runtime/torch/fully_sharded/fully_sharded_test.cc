// Fully sharded models train as unsharded ones do, wherever their parts are and with any replicas;
// they are saved and loaded; and wrong use is reported.
#include "cadre/torch/fully_sharded.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/hybrid_sharding.h"
#include "cadre/wait_or_abort.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/lbfgs.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/fully_sharded/fully_sharded_training_for_test.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/pretend_device/queue.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// As many as it takes for momentum and for Adam's corrections to matter.
constexpr int kSteps = 8;

INSTANTIATE_TEST_SUITE_P(Each, FullyShardedTraining, EachWayAndKind(), NameOf);

TEST_P(FullyShardedTraining, IsAsUnsharded) {
  for (const int ranks : {1, 3, 4}) {
    ExpectAsUnsharded(ranks, kSteps, kOnePass);
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

// Units run forward twice before they run backward, and some passes have no backward pass.
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

// The order that was learnt in the first steps no longer holds.
TEST_P(FullyShardedTraining, WithUnitsThatSomeStepsSkip) {
  const auto passes = [](Communicator& communicator, auto& model, int step) {
    const size_t skipped = step < 2 ? 0 : 2;
    model.forward(Input(communicator, step), skipped).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  };
  const auto ours = Sharded(2, 5, passes, UnitOptions(where()));
  ExpectClose(ours, Unsharded(2, 5, passes), true);
}

// One unit is inside another, one has only frozen parameters, and one has some.
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
      // These are rank 0's values, which data-parallel training does not send for frozen
      // parameters.
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

// Compares with a model that computes in bfloat16 by hand and keeps float32 for its optimizer. All
// ranks have the same data, so that their average is what each has.
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

// ZeRO's table: (4 + 4 + 8) bytes for each float32 parameter with Adam, divided by the ranks.
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
        // These passes have no backward pass.
        (void)(*model)->forward(Input(communicator, step + 100));
      }
      const size_t units = may_prefetch ? 2 : 1;
      EXPECT_GE((*model)->most_gathered_bytes(), root + units * block);
      EXPECT_LE((*model)->most_gathered_bytes(), root + units * block + 3 * margin);
    }
  });
}

}  // namespace

// Tests of fully sharded models whose parts are in the host's memory.

namespace {

class OffloadedTraining : public FullyShardedTraining {
 protected:
  static FullyShardedOptions Offloaded() {
    FullyShardedOptions options = UnitOptions(where());
    options.offload_to_host = true;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Each, OffloadedTraining, EachWayAndKind(), NameOf);

TEST_P(OffloadedTraining, IsAsUnsharded) {
  for (const int ranks : {1, 3, 4}) ExpectAsUnsharded(ranks, kSteps, kOnePass, Offloaded());
}

TEST_P(OffloadedTraining, InHybridSharding) {
  for (const int ranks : {2, 4}) {
    ExpectAsUnsharded(ranks, 6, kOnePass, Offloaded(), 0, ranks / 2);
  }
}

// The last gather copies from the parts while the host has already gone on to the step.
TEST_P(OffloadedTraining, PassesBeforeTheStepSeeWhatWasBefore) {
  const auto passes = [](Communicator& communicator, auto& model, int step) {
    OnePass(communicator, model, step);
    const torch::NoGradGuard no_grad;
    (void)model.forward(Input(communicator, step + 100));
  };
  ExpectAsUnsharded(2, 6, passes, Offloaded());
}

TEST_P(OffloadedTraining, AddsUpInsideNoSyncAndOverSeveralPasses) {
  const auto passes = [](Communicator& communicator, auto& model, int step) {
    {
      const typename std::decay_t<decltype(model)>::NoSync no_sync(model);
      OnePass(communicator, model, step + 100);
    }
    OnePass(communicator, model, step);
  };
  ExpectAsUnsharded(2, 6, passes, Offloaded());
  const auto twice = [](Communicator& communicator, Model& model, int step) {
    OnePass(communicator, model, step);
    OnePass(communicator, model, step + 100);
  };
  ExpectClose(Sharded(2, 6, twice, Offloaded()), Sharded(2, 6, twice, UnitOptions(where())), true);
}

TEST_P(OffloadedTraining, ClipsByTheNormOfTheWhole) {
  ExpectAsUnsharded(2, 6, kOnePass, Offloaded(), 0.05);
}

// All parameters are gathered in bfloat16; gradients reach the host in the parts' own type.
TEST_P(OffloadedTraining, In16BitsIsAsWithout) {
  const auto passes = [](Communicator& communicator, Model& model, int step) {
    model.forward(Input(communicator, step).to(torch::kBFloat16)).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  };
  FullyShardedOptions on_host = Offloaded(), on_device = UnitOptions(where());
  on_host.parameter_type = on_device.parameter_type = torch::kBFloat16;
  ExpectClose(Sharded(2, 5, passes, on_host), Sharded(2, 5, passes, on_device), true);
}

// The host waits for the device only in Finish().
TEST_P(OffloadedTraining, LeavesNothingOnTheDevice) {
  OnEachRank(2, [&](Communicator& communicator) {
    const auto barrier = [&] {
      ASSERT_OK(WaitOrAbort(communicator, communicator.Barrier(), kLong));
    };
    barrier();
    const size_t before = pretend::LiveBytes();
    barrier();
    const auto net = MakeUnits(communicator, 64);
    auto model = Model::Create(net, net->units(), communicator, Offloaded());
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
    for (int step = 0; step < 3; ++step) {
      {
        const torch::Tensor input = Input(communicator, step);
        const bool counts = where() == Where::kOnDevice;
        const uint64_t waits = counts ? pretend::HostWaits(input.device()) : 0;
        (*model)->forward(input).pow(2).mean().backward();
        if (counts) {
          EXPECT_EQ(pretend::HostWaits(input.device()), waits);
        }
      }
      ASSERT_OK((*model)->Finish());
      for (const torch::Tensor& shard : (*model)->shards()) {
        EXPECT_TRUE(shard.device().is_cpu());
        EXPECT_TRUE(shard.grad().device().is_cpu());
      }
      ASSERT_OK((*model)->Step(*optimizer));
      barrier();
      // Memory that a stream uses is freed when the stream has got to its last use.
      const auto deadline = std::chrono::steady_clock::now() + kLong;
      while (pretend::LiveBytes() > before && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      EXPECT_EQ(pretend::LiveBytes(), before);
      barrier();
      (*model)->ZeroGrad();
    }
  });
}

// The parts are on the host and on the devices by turns; the data are the same for all ranks.
TEST_P(OffloadedTraining, GoesOnWithWhatWasSavedWithout) {
  std::string of_model, of_optimizer;
  const auto run = [&](bool offloads, int from, int to) {
    std::vector<torch::Tensor> values;
    OnEachRank(2, [&](Communicator& communicator) {
      const auto net = MakeUnits(communicator);
      auto model = Model::Create(net, net->units(), communicator,
                                 offloads ? Offloaded() : UnitOptions(where()));
      ASSERT_OK(model);
      const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
      if (from > 0) {
        auto saved_model = ArchiveOf(of_model), saved_optimizer = ArchiveOf(of_optimizer);
        ASSERT_OK((*model)->LoadState(saved_model));
        ASSERT_OK((*model)->LoadOptimizerState(*optimizer, saved_optimizer));
      }
      for (int step = from; step < to; ++step) {
        OnePass(communicator, **model, step);
        ASSERT_OK((*model)->Step(*optimizer));
        (*model)->ZeroGrad();
      }
      torch::serialize::OutputArchive model_archive, optimizer_archive;
      ASSERT_OK((*model)->SaveState(model_archive));
      ASSERT_OK((*model)->SaveOptimizerState(*optimizer, optimizer_archive));
      ASSERT_OK(communicator.Barrier()->Wait(kLong));
      if (communicator.rank() != 0) return;
      of_model = TextOf(model_archive);
      of_optimizer = TextOf(optimizer_archive);
      UnitNet saved;
      auto archive = ArchiveOf(of_model);
      saved.load(archive);
      values = ParametersOf(saved);
    });
    return values;
  };
  const std::vector<torch::Tensor> expected = run(false, 0, 9);
  (void)run(true, 0, 3);
  (void)run(false, 3, 6);
  ExpectSame(run(true, 6, 9), expected);
}

}  // namespace

// How much of a fully sharded model's gathers and reductions is hidden behind its passes, and how
// often the host waits, in the pretend device's simulated time.

namespace {

// In hybrid sharding this is the number of each replica's ranks.
constexpr int kRanks = 2;
constexpr int kReplicas = 2;
constexpr int kLayers = 10;
constexpr int64_t kWidth = 256;
constexpr int64_t kBatch = 32;
constexpr double kUnitBytes = kWidth * (kWidth + 1) * 4.0;
constexpr double kUnitProducts = kBatch * kWidth * kWidth;

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i) {
      names.push_back("layer" + std::to_string(i));
      layers.push_back(register_module(names.back(), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  torch::Tensor forward(torch::Tensor out) {
    for (torch::nn::Linear& layer : layers) out = CallUnit(layer, out).relu();
    return out;
  }
  std::vector<std::string> names;
  std::vector<torch::nn::Linear> layers;
};

// The bus takes `gather_seconds` for one unit, and the device's forward pass of one unit takes
// `ratio` times as long.
struct Speeds {
  double gather_seconds = 5e-6;
  double ratio = 1;

  pretend::Costs costs(bool with_bus) const {
    pretend::Costs costs;
    costs.operator_seconds = 1.5e-8;
    costs.products = kUnitProducts / (ratio * gather_seconds);
    if (with_bus) costs.bus_bytes = kUnitBytes / gather_seconds;
    return costs;
  }
};

class FullyShardedHiddenTest : public ::testing::Test {
 protected:
  FullyShardedHiddenTest() { pretend::Install(kRanks * kReplicas); }
  ~FullyShardedHiddenTest() override { pretend::SetCosts(pretend::Costs()); }

  // Returns the simulated duration of a step.
  static double SecondsOfAStep(const pretend::Costs& costs, bool prefetches, int replicas = 1) {
    pretend::SetCosts(costs);
    double seconds = 0;
    OnEachRank(kRanks * replicas, [&](Communicator& communicator) {
      const torch::Device device = pretend::Device(communicator.rank());
      const auto net = std::make_shared<Net>();
      net->to(device);
      const torch::Tensor input = torch::ones({kBatch, kWidth}).to(device);
      FullyShardedOptions options;
      options.connect_device = pretend::ConnectPretendDevices;
      options.timeout = kLong;
      if (!prefetches) options.most_gathered_bytes = 0;
      auto groups = SplitByNode(communicator, kRanks, kLong);
      ASSERT_OK(groups);
      if (replicas > 1) options.replicas = groups->replicas.get();
      auto model = FullySharded<Net>::Create(net, net->names, *groups->shards, options);
      ASSERT_OK(model);
      torch::optim::SGD sgd((*model)->shards(), 1e-3);
      const auto now = [&] {
        return pretend::TimeAt(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      };
      std::shared_future<double> begin, end;
      for (int step = 0; step < 4; ++step) {
        begin = now();
        const uint64_t waits = pretend::HostWaits(device);
        (*model)->forward(input).mean().backward();
        ASSERT_OK((*model)->Finish());
        ASSERT_OK((*model)->Step(sgd));
        (*model)->ZeroGrad();
        EXPECT_EQ(pretend::HostWaits(device), waits);
        end = now();
      }
      // Each rank waits for its own times.
      const double mine = end.get() - begin.get();
      if (communicator.rank() == 0) seconds = mine;
    });
    return seconds;
  }

  static void ExpectHidden(double ratio) {
    const Speeds speeds{5e-6, ratio};
    const double alone = SecondsOfAStep(speeds.costs(false), true);
    const double ours = SecondsOfAStep(speeds.costs(true), true);
    const double one_by_one = SecondsOfAStep(speeds.costs(true), false);
    // Nothing can be hidden before the first unit or after the last, and the bus is never idle if
    // it is the bottleneck: every unit except the last is gathered twice, and every unit is
    // reduced.
    const double ideal =
        std::max(alone + 2 * speeds.gather_seconds, (3 * kLayers - 1) * speeds.gather_seconds);
    std::printf("forward / bus = %.2f: %.1f us a step, ideally %.1f us: %.3f; one by one %.1f us\n",
                ratio, ours * 1e6, ideal * 1e6, ours / ideal, one_by_one * 1e6);
    EXPECT_GT(ours, 0.999 * ideal) << "nothing is faster than the ideal schedule";
    EXPECT_LE(ours, 1.15 * ideal);
    EXPECT_GT(one_by_one, 1.03 * ours);
  }

  // Traffic between nodes has its own bus.
  static void ExpectHiddenAcross(double ratio) {
    const Speeds speeds{5e-6, ratio};
    const double sharded = SecondsOfAStep(speeds.costs(true), true);
    const double hybrid = SecondsOfAStep(speeds.costs(true), true, kReplicas);
    // Nothing after the last unit can hide the average of its parts, each half a unit.
    const double ideal = sharded + 0.5 * speeds.gather_seconds;
    std::printf("forward / bus = %.2f: %.1f us a step, in hybrid sharding %.1f us: %.3f\n", ratio,
                sharded * 1e6, hybrid * 1e6, hybrid / ideal);
    EXPECT_GT(hybrid, 0.999 * ideal) << "nothing is faster than the ideal schedule";
    EXPECT_LE(hybrid, 1.02 * ideal);
  }
};

TEST_F(FullyShardedHiddenTest, BehindPassesThatAreSlowerThanTheBus) { ExpectHidden(3); }

TEST_F(FullyShardedHiddenTest, WhereTheBusIsAsFast) { ExpectHidden(1); }

TEST_F(FullyShardedHiddenTest, AsFarAsPossibleWhereTheBusIsSlower) { ExpectHidden(0.25); }

TEST_F(FullyShardedHiddenTest, BetweenReplicas) {
  for (const double ratio : {3.0, 1.0, 0.25}) ExpectHiddenAcross(ratio);
}

}  // namespace

// The full state of a fully sharded model and its optimizer is saved and loaded again.

namespace {

using Model = FullySharded<UnitNet>;

struct Saved {
  std::string model;
  std::string optimizer;
};

class FullyShardedState : public ShardedTraining {
 protected:
  static torch::Tensor Loss(torch::Tensor output) { return output.pow(2).mean(); }

  // Trains from step `from`, with the state saved then, to `to`; returns the state saved in the
  // end. All ranks have the same data, so that their number changes nothing.
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
    // The state from before the failed load is unchanged.
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

// The other model's parameters are a prefix of this one's.
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

// Computation is in 16 bits, but the kept values are not.
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

class HybridTraining : public FullyShardedTraining {
 protected:
  // Four ranks hold two replicas; their bits differ from one replica's only through the order of
  // sums.
  template <typename Passes>
  static void ExpectAsUnshardedOn2x2(const Passes& passes,
                                     const FullyShardedOptions& options = UnitOptions(where()),
                                     double max_norm = 0) {
    ExpectAsUnsharded(4, 6, passes, options, max_norm, 2);
  }
};

INSTANTIATE_TEST_SUITE_P(Each, HybridTraining, EachWayAndKind(), NameOf);

TEST_P(HybridTraining, IsAsUnsharded) {
  struct Shape {
    int ranks;
    int local_size;
  };
  for (const Shape shape : {Shape{2, 2}, {2, 1}, {3, 1}}) {
    ExpectAsUnsharded(shape.ranks, kSteps, kOnePass, UnitOptions(where()), 0, shape.local_size);
  }
  ExpectAsUnshardedOn2x2(kOnePass);
}

// Trains without ranks; gradients are summed in the order in which two replicas of two ranks do.
std::vector<torch::Tensor> TrainedWithSumsInPairs(Kind kind, int steps) {
  UnitNet net;
  const auto optimizer = MakeOptimizer(kind, net.parameters());
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<torch::Tensor>> quarters;
    for (int rank = 0; rank < 4; ++rank) {
      net.forward(InputFor(rank, step, torch::kCPU)).pow(2).mean().backward();
      quarters.emplace_back();
      for (torch::Tensor& parameter : net.parameters()) {
        quarters.back().push_back(parameter.grad() / 4);
        parameter.mutable_grad() = torch::Tensor();
      }
    }
    const auto parameters = net.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      torch::Tensor(parameters[i]).mutable_grad() =
          (quarters[0][i] + quarters[1][i]) + (quarters[2][i] + quarters[3][i]);
    }
    optimizer->step();
    for (torch::Tensor& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor();
  }
  return ParametersOf(net);
}

TEST_P(HybridTraining, TwoReplicasOfTwoRanksHaveTheBitsOfSumsInPairs) {
  const auto expected = TrainedWithSumsInPairs(kind(), kSteps);
  for (const auto& ours : Sharded(4, kSteps, kOnePass, UnitOptions(where()), 0, 2)) {
    ExpectSame(ours, expected);
  }
}

// With one replica there is nothing to exchange between replicas.
TEST_P(HybridTraining, WithOneReplicaIsAsSharded) {
  const FullyShardedOptions options = UnitOptions(where());
  ExpectClose(Sharded(3, 6, kOnePass, options, 0, 3), Sharded(3, 6, kOnePass, options), true);
}

TEST_P(HybridTraining, WithParametersThatStayForTheBackwardPass) {
  FullyShardedOptions options = UnitOptions(where());
  options.reshard_after_forward = false;
  ExpectAsUnshardedOn2x2(kOnePass, options);
}

TEST_P(HybridTraining, AddsUpInsideNoSync) {
  const auto passes = [](Communicator& communicator, auto& model, int step) {
    {
      const typename std::decay_t<decltype(model)>::NoSync no_sync(model);
      OnePass(communicator, model, step + 100);
      OnePass(communicator, model, step + 200);
    }
    OnePass(communicator, model, step);
  };
  const FullyShardedOptions options = UnitOptions(where());
  for (const int local_size : {1, 2}) ExpectAsUnsharded(2, 6, passes, options, 0, local_size);
  // The sums have another order, which matters more with gradients three times as large.
  ExpectAsUnsharded(4, 3, passes, options, 0, 2);
}

// Each rank's part counts once, however many replicas have it.
TEST_P(HybridTraining, ClipsByTheNormOfTheWhole) {
  ExpectAsUnshardedOn2x2(kOnePass, UnitOptions(where()), 0.05);
}

TEST_P(HybridTraining, LeavesEachRankItsPart) { ExpectAPartOnEachRank(4, 2); }

// All ranks have the same data, so that each average is what each rank has, in 16 bits as well.
TEST_P(HybridTraining, In16BitsIsAsSharded) {
  const auto passes = [](Communicator& communicator, Model& model, int step) {
    const torch::Tensor input = InputFor(0, step, DeviceFor(where(), communicator));
    model.forward(input.to(torch::kBFloat16)).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  };
  FullyShardedOptions options = UnitOptions(where());
  options.parameter_type = torch::kBFloat16;
  const RanksValues hybrid = Sharded(4, 5, passes, options, 0, 2);
  ExpectClose(hybrid, Sharded(4, 5, passes, options), true);
}

// Devices of one node are connected but nodes are not, for example because they encrypt their
// traffic; and the other way round.
TEST_P(HybridTraining, WhereOneOfTheTwoWaysIsTheHosts) {
  if (where() != Where::kOnDevice) GTEST_SKIP() << "there is one way";
  const RanksValues theirs = Unsharded(4, 6, kOnePass);
  for (const bool connects_nodes : {true, false}) {
    RanksValues ours(4);
    OnEachRank(4, [&](Communicator& communicator) {
      const auto net = MakeUnits(communicator);
      ModelRanks among(communicator, 2, UnitOptions(where()));
      among.options.connect_device =
          [&](Communicator& host, DeviceStream& stream) -> Result<std::unique_ptr<Communicator>> {
        if ((&host == among.options.replicas) != connects_nodes) return UnimplementedError("");
        return pretend::ConnectPretendDevices(host, stream);
      };
      auto model = Model::Create(net, net->units(), among.shards(), among.options);
      ASSERT_OK(model);
      ours[static_cast<size_t>(communicator.rank())] = Trained(communicator, **model, 6, kOnePass);
    });
    ExpectClose(ours, theirs, false);
  }
}

// The training goes on with other layouts and with none; the data are the same for all ranks.
TEST_P(HybridTraining, GoesOnWithAnotherLayout) {
  std::string of_model, of_optimizer;
  const auto run = [&](int ranks, int local_size, int from, int to) {
    std::vector<torch::Tensor> values;
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeUnits(communicator);
      const ModelRanks among(communicator, local_size, UnitOptions(where()));
      auto model = Model::Create(net, net->units(), among.shards(), among.options);
      ASSERT_OK(model);
      const auto optimizer = MakeOptimizer(kind(), (*model)->shards());
      if (from > 0) {
        auto saved_model = ArchiveOf(of_model), saved_optimizer = ArchiveOf(of_optimizer);
        ASSERT_OK((*model)->LoadState(saved_model));
        ASSERT_OK((*model)->LoadOptimizerState(*optimizer, saved_optimizer));
      }
      for (int step = from; step < to; ++step) {
        const torch::Tensor input = InputFor(0, step, DeviceFor(where(), communicator));
        (*model)->forward(input).pow(2).mean().backward();
        ASSERT_OK((*model)->Finish());
        ASSERT_OK((*model)->Step(*optimizer));
        (*model)->ZeroGrad();
      }
      const int recipient = among.shards().size() - 1;
      torch::serialize::OutputArchive model_archive, optimizer_archive;
      ASSERT_OK((*model)->SaveState(model_archive, recipient));
      ASSERT_OK((*model)->SaveOptimizerState(*optimizer, optimizer_archive, recipient));
      const auto barrier = communicator.Barrier();
      ASSERT_OK(barrier->Wait(kLong));
      // The recipient is in the first replica.
      if (communicator.rank() == recipient) {
        of_model = TextOf(model_archive);
        of_optimizer = TextOf(optimizer_archive);
        UnitNet saved;
        auto archive = ArchiveOf(of_model);
        saved.load(archive);
        values = ParametersOf(saved);
      } else if (local_size > 0) {
        auto archive = ArchiveOf(TextOf(model_archive));
        torch::Tensor nothing;
        EXPECT_FALSE(archive.try_read("stem.weight", nothing));
        EXPECT_TRUE(archive.keys().empty());
      }
    });
    return values;
  };
  const std::vector<torch::Tensor> expected = run(4, 2, 0, 9);
  (void)run(4, 2, 0, 3);
  (void)run(3, 0, 3, 6);
  ExpectClose(run(4, 2, 6, 9), expected);
}

}  // namespace

// Errors of fully sharded models.

namespace {

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

// Rank 1 may call its last two units in the other order; they have the same size.
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

// Calls a block without CallUnit(), or reads its weight.
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

// Finish() reports it whether libtorch rejects the gradient's shape, as here, or not, as it would
// with one element.
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

// Throws on all ranks, as a loss that does not fit into memory would.
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

// All other ranks finish their passes and learn of the loss; with devices some calls later.
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

// Communicators that do not form a hybrid sharding, and ranks that fail in one.

namespace {

TEST(SplitByNode, GivesBothGroups) {
  OnEachRank(6, [](Communicator& communicator) {
    const auto groups = SplitByNode(communicator, 3, kLong);
    ASSERT_OK(groups);
    EXPECT_EQ(groups->shards->size(), 3);
    EXPECT_EQ(groups->shards->rank(), communicator.rank() % 3);
    EXPECT_EQ(groups->replicas->size(), 2);
    EXPECT_EQ(groups->replicas->rank(), communicator.rank() / 3);
    EXPECT_OK(CheckGroupsFit(*groups->shards, groups->replicas.get(), kLong));
  });
}

TEST(SplitByNode, NodesOfDifferentSizes) {
  OnEachRank(4, [](Communicator& communicator) {
    EXPECT_THAT(
        SplitByNode(communicator, communicator.rank() < 3 ? 3 : 1, kLong).status(),
        StatusIs(StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("rank 3 is one of 1 on its node"), HasSubstr("rank 0 of 3"))));
  });
}

TEST(SplitByNode, ASizeThatDoesNotDivideTheWorld) {
  OnEachRank(4, [](Communicator& communicator) {
    for (const int size : {3, 0, -1, 8}) {
      EXPECT_THAT(SplitByNode(communicator, size, kLong).status(),
                  StatusIs(StatusCode::kInvalidArgument,
                           HasSubstr("each node has " + std::to_string(size) +
                                     " ranks, and all nodes together have 4")));
    }
  });
}

// Both communicators are given as colors, by rank.
void ExpectNoFit(const std::vector<int>& nodes, const std::vector<int>& parts,
                 const std::vector<std::string>& texts) {
  OnEachRank(static_cast<int>(nodes.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    const auto shards = communicator.Split(nodes[rank], communicator.rank());
    ASSERT_OK(shards);
    const auto replicas = communicator.Split(parts[rank], communicator.rank());
    ASSERT_OK(replicas);
    FullyShardedOptions options = UnitOptions();
    options.replicas = replicas->get();
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(Model::Create(net, net->units(), **shards, options).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("do not fit together"), HasSubstr(texts[rank]))));
  });
}

TEST(HybridShardingErrors, ReplicasOfDifferentSizes) {
  ExpectNoFit({0, 0, 0, 1}, {0, 1, 2, 0},
              {"rank 0 of 3 with parts is in replica 0 of 2, and rank 1 with parts in 0 of 1",
               "rank 1 of 3 with parts is in replica 0 of 1, and rank 0 with parts in 0 of 2",
               "rank 2 of 3 with parts is in replica 0 of 1, and rank 0 with parts in 0 of 2",
               "rank 0 of 1 with parts is in replica 1 of 2, and replica 0's rank there is 0 of 3 "
               "with parts"});
}

// The replica's rank has the part of another rank.
TEST(HybridShardingErrors, ReplicasThatAreCrossed) {
  ExpectNoFit(
      {0, 0, 1, 1}, {0, 1, 1, 0},
      {"rank 0 of 2 with parts is in replica 0 of 2, and replica 1's rank there is 1 of 2",
       "rank 1 of 2 with parts is in replica 0 of 2, and replica 1's rank there is 0 of 2",
       "rank 0 of 2 with parts is in replica 1 of 2, and replica 0's rank there is 1 of 2",
       "rank 1 of 2 with parts is in replica 1 of 2, and replica 0's rank there is 0 of 2"});
}

TEST(HybridShardingErrors, ARankWithoutReplicas) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto alone = communicator.Split(communicator.rank(), 0);
    ASSERT_OK(alone);
    FullyShardedOptions options = UnitOptions();
    const bool has = communicator.rank() == 1;
    if (has) options.replicas = alone->get();
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(Model::Create(net, net->units(), communicator, options).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(has ? "in replica 0 of 1" : "in replica none"),
                               HasSubstr(has ? "with parts in none" : "with parts in 0 of 1"))));
  });
}

TEST(HybridShardingErrors, ReplicasThatDiffer) {
  OnEachRank(4, [](Communicator& communicator) {
    const ModelRanks among(communicator, 2, UnitOptions());
    const auto net = std::make_shared<UnitNet>(1, communicator.rank() < 2 ? 10 : 11);
    EXPECT_THAT(Model::Create(net, net->units(), among.shards(), among.options).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the replicas, whose ranks these are, differ"),
                               HasSubstr("'stem.weight'"), HasSubstr("on rank 1"))));
  });
}

// Ranks that have another part, in another replica, learn of the loss as well.
TEST(HybridShardingErrors, ARankThatIsGone) {
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    OnEachRank(4, [where](Communicator& communicator) {
      UnitRank rank(where, communicator, 2);
      const torch::Tensor loss = rank.Loss();
      if (communicator.rank() == 3) {
        rank.among().shards().Abort();
        rank.among().groups.replicas->Abort();
        return;
      }
      rank.ExpectToHear(loss);
    });
  }
}

// The model is destroyed during a pass that was not finished, in any of its stages.
TEST(HybridShardingErrors, AModelThatGoesBeforeFinish) {
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    OnEachRank(4, [where](Communicator& communicator) {
      UnitRank rank(where, communicator, 2);
      rank.Loss().backward();
      rank.LoseModel();
      if (where == Where::kOnDevice) return;
      // Pending operations refer to the model's memory, so they must have ended.
      EXPECT_FALSE(rank.among().shards().Barrier()->Wait(kLong).ok());
      EXPECT_FALSE(rank.among().groups.replicas->Barrier()->Wait(kLong).ok());
    });
  }
}

}  // namespace

}  // namespace cadre::nn
