// Fully sharded models whose parts are in the host's memory.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/wait_or_abort.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/fully_sharded_training_for_test.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {
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
  for (const int ranks : {1, 2, 3, 4}) ExpectAsUnsharded(ranks, 50, kOnePass, Offloaded());
}

TEST_P(OffloadedTraining, InHybridSharding) {
  for (const int ranks : {2, 4}) {
    ExpectAsUnsharded(ranks, 6, kOnePass, Offloaded(), 0, ranks / 2);
  }
}

// What was gathered last is copied from the parts while the host has gone on to the step.
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

// All parameters are gathered in bfloat16; gradients come to the host in the parts' own type.
TEST_P(OffloadedTraining, In16BitsIsAsWithout) {
  const auto passes = [](Communicator& communicator, Model& model, int step) {
    model.forward(Input(communicator, step).to(torch::kBFloat16)).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  };
  FullyShardedOptions on_host = Offloaded(), on_device = UnitOptions(where());
  on_host.parameter_type = on_device.parameter_type = torch::kBFloat16;
  ExpectClose(Sharded(2, 5, passes, on_host), Sharded(2, 5, passes, on_device), true);
}

// The host waits for the device in Finish() alone.
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
      // What a stream uses is free when that has come to its end.
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

// With parts on the host and on the devices by turns, on data that are the same for all ranks.
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
}  // namespace cadre::nn
