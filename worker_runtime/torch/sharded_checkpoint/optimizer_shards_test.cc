// Training with a sharded optimizer that goes on from what each rank saved by itself.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/sharded_checkpoint/shards_rig_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kExtra[] = "what the program adds";

// One rank's model and optimizer, of stage 1 or, with `shards_gradients`, of stage 2.
struct StageTraining {
  StageTraining(Where where, Kind kind, Communicator& communicator, bool shards_gradients = false,
                int width = 10)
      : kind(kind), rank(communicator.rank()), device(DeviceFor(where, communicator)) {
    net = std::make_shared<UnitNet>(1 + rank, width);
    net->to(device);
    plain = MakeOptimizer(kind, net->parameters());
    auto sharded = ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where));
    EXPECT_OK(sharded);
    optimizer = *std::move(sharded);
    DataParallelOptions options = SmallBuckets();
    options.connect_device = ConnectFor(where);
    if (shards_gradients) {
      auto made = ShardedDataParallel<UnitNet>::Create(net, *optimizer, options);
      EXPECT_OK(made);
      model = *std::move(made);
    } else {
      auto made = DataParallel<UnitNet>::Create(net, communicator, options);
      EXPECT_OK(made);
      model = *std::move(made);
    }
  }

  void Train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->ZeroGrad();
      model->forward(InputFor(0, step, device)).pow(2).mean().backward();
      ASSERT_OK(model->Finish().status());
      ASSERT_OK(optimizer->Step());
    }
  }

  // Of the whole state, on rank 0, as UnitTraining has it.
  std::vector<torch::Tensor> StateValues() {
    torch::serialize::OutputArchive saved;
    EXPECT_OK(optimizer->SaveState(saved));
    return rank == 0 ? StateTensors(kind, TextOf(saved)) : std::vector<torch::Tensor>();
  }

  const Kind kind;
  const int rank;
  const torch::Device device;
  std::shared_ptr<UnitNet> net;
  std::unique_ptr<torch::optim::Optimizer> plain;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::unique_ptr<DataParallel<UnitNet>> model;
};

// What training came to on rank 0: after step 5, and in the end.
struct Trained {
  std::vector<torch::Tensor> middle, optimizer, end;
};

class OptimizerShards : public ShardedTraining {
 protected:
  Trained Save(int ranks, bool shards_gradients) const {
    Trained trained;
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      StageTraining training(where(), kind(), communicator, shards_gradients);
      const auto checkpoint = OpenCheckpoint(worker, folder_.path());
      training.Train(0, 5);
      Trained here;
      here.middle = ParametersOf(*training.net);
      here.optimizer = training.StateValues();
      const auto state = ShardsOf(*training.net, *training.optimizer, kExtra);
      ASSERT_OK(state);
      EXPECT_OK(checkpoint->Save(5, *state));
      training.Train(5, 10);
      here.end = ParametersOf(*training.net);
      EXPECT_OK(checkpoint->Wait());
      if (training.rank == 0) trained = std::move(here);
    });
    return trained;
  }
  Trained Load(int ranks, bool shards_gradients) const {
    Trained trained;
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      StageTraining training(where(), kind(), communicator, shards_gradients);
      const auto latest = OpenCheckpoint(worker, folder_.path())->Latest();
      ASSERT_OK(latest);
      ASSERT_TRUE(latest->has_value());
      std::string extra;
      ASSERT_OK(LoadShards(*training.net, *training.optimizer, (*latest)->shards, &extra));
      EXPECT_EQ(extra, kExtra);
      Trained here;
      here.middle = ParametersOf(*training.net);
      here.optimizer = training.StateValues();
      training.Train(5, 10);
      here.end = ParametersOf(*training.net);
      if (training.rank == 0) trained = std::move(here);
    });
    return trained;
  }

  const ScratchFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Each, OptimizerShards, EachWayAndKind(), NameOf);

TEST_P(OptimizerShards, GoesOnWithAnyNumberOfRanks) {
  for (const bool shards_gradients : {false, true}) {
    const Trained expected = Save(4, shards_gradients);
    EXPECT_FALSE(expected.optimizer.empty());
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(ranks);
      const Trained trained = Load(ranks, shards_gradients);
      ExpectSame(trained.middle, expected.middle);
      ExpectSame(trained.optimizer, expected.optimizer);
      ExpectClose(trained.end, expected.end);
      if (ranks == 4) ExpectSame(trained.end, expected.end);
    }
  }
}

TEST_P(OptimizerShards, AreThoseOfStage3_AndTheOtherWayRound) {
  const Trained expected = Save(3, true);
  OnEachWorker(2, 1, [&](Worker& worker, Communicator& communicator) {
    UnitTraining training(where(), kind(), communicator);
    const auto checkpoint = OpenCheckpoint(worker, folder_.path());
    const auto latest = checkpoint->Latest();
    ASSERT_OK(latest);
    ASSERT_OK(LoadShards(*training.model, *training.optimizer, (*latest)->shards));
    const auto values = training.Values();
    const auto state = training.StateValues();
    ExpectSame(values, expected.middle);
    if (communicator.rank() == 0) ExpectSame(state, expected.optimizer);
    SaveAndWait(*checkpoint, 6, ShardsOf(*training.model, *training.optimizer, kExtra));
  });
  const Trained trained = Load(3, false);
  ExpectSame(trained.middle, expected.middle);
  ExpectSame(trained.optimizer, expected.optimizer);
}

// What a rank keeps in memory is loaded by the same rank alone.
TEST(OptimizerShardsInMemory, GoOnWithTheSameRanks) {
  std::vector<std::string> bytes(3);
  std::vector<torch::Tensor> expected;
  for (const int ranks : {3, 3, 2}) {
    const bool saves = expected.empty();
    OnEachWorker(ranks, 1, [&](Worker&, Communicator& communicator) {
      StageTraining training(Where::kHost, Kind::kAdam, communicator);
      std::string& own = bytes[static_cast<size_t>(training.rank)];
      if (saves) {
        training.Train(0, 5);
        auto state = ShardsOf(*training.net, *training.optimizer);
        ASSERT_OK(state);
        const auto parts = state->Parts(5);
        ASSERT_OK(parts);
        for (const StatePart& part : *parts) {
          own.append(static_cast<const char*>(part.data), part.size);
        }
      } else {
        const auto saved = SavedShards::FromMemory({own.data(), own.size()});
        ASSERT_OK(saved);
        const Status loaded = LoadShards(*training.net, *training.optimizer, *saved);
        if (ranks == 2) {
          EXPECT_THAT(loaded, StatusIs(StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("rank "), HasSubstr("one of 3 ranks"))));
          return;
        }
        ASSERT_OK(loaded);
      }
      training.Train(5, 8);
      const auto values = ParametersOf(*training.net);
      if (training.rank == 0 && saves) expected = values;
      if (training.rank == 0 && !saves) ExpectSame(values, expected);
    });
  }
}

TEST(OptimizerShardsErrors, OfAnotherModelOrOptimizer_NothingChanges) {
  const ScratchFolder folder;
  for (const bool saves : {true, false}) {
    OnEachWorker(2, 1, [&](Worker& worker, Communicator& communicator) {
      StageTraining training(Where::kHost, Kind::kAdam, communicator);
      const auto checkpoint = OpenCheckpoint(worker, folder.path());
      training.Train(0, 2);
      if (saves) {
        SaveAndWait(*checkpoint, 1, ShardsOf(*training.net, *training.optimizer));
        return;
      }
      const auto latest = checkpoint->Latest();
      ASSERT_OK(latest);
      StageTraining wider(Where::kHost, Kind::kAdam, communicator, false, /*width=*/11);
      EXPECT_THAT(
          LoadShards(*wider.net, *wider.optimizer, (*latest)->shards),
          StatusIs(StatusCode::kInvalidArgument,
                   AllOf(HasSubstr("rank "), HasSubstr("'stem.weight'"), HasSubstr("there"))));
      StageTraining other(Where::kHost, Kind::kSgd, communicator);
      other.Train(0, 2);
      const auto before = ParametersOf(*other.net);
      const auto state = other.StateValues();
      EXPECT_THAT(LoadShards(*other.net, *other.optimizer, (*latest)->shards),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("Adam")));
      ExpectSame(ParametersOf(*other.net), before);
      ExpectSame(other.StateValues(), state);
      EXPECT_THAT(ShardsOf(*wider.net, *other.optimizer).status(),
                  StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("rank "), HasSubstr("not the module's"))));
    });
  }
}

}  // namespace
}  // namespace cadre::nn
