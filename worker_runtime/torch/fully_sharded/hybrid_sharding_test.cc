#include "cadre/torch/hybrid_sharding.h"

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/fully_sharded_training_for_test.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"

namespace cadre::nn {
namespace {

class HybridTraining : public FullyShardedTraining {
 protected:
  // Of four ranks with two replicas, whose bits differ from one replica's only where the order of
  // a sum does.
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
    ExpectAsUnsharded(shape.ranks, 50, kOnePass, UnitOptions(where()), 0, shape.local_size);
  }
  ExpectAsUnshardedOn2x2(kOnePass);
}

// Training without ranks, whose gradients are summed in the order in which two replicas of two
// ranks sum them.
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
  const auto expected = TrainedWithSumsInPairs(kind(), 50);
  for (const auto& ours : Sharded(4, 50, kOnePass, UnitOptions(where()), 0, 2)) {
    ExpectSame(ours, expected);
  }
}

// One replica is no hybrid.
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
  // In another order, which makes more of a difference with gradients three times as large.
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

// Devices of one node are connected and nodes are not, since these encrypt what they send, say; and
// the other way round.
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

// With other layouts and with none, on data that are the same for all ranks.
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
      // Of the first replica.
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
}  // namespace cadre::nn
