// Training of sharded models, and with sharded optimizers, goes on from what each rank saved by
// itself, in files or in memory.
#include "cadre/torch/sharded_checkpoint.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/optim/adagrad.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/sharded_checkpoint/shards_rig_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The result of a training on rank 0.
struct Trained {
  // The parameters and the optimizer's state after step 5, and the parameters in the end.
  std::vector<torch::Tensor> middle;
  std::vector<torch::Tensor> optimizer;
  std::vector<torch::Tensor> end;
};

class ShardedCheckpoints : public ShardedTraining {
 protected:
  // Saves after step 5 and goes on at once to step 10, while the files are written. If
  // `replica_ranks` is not 0, each replica has so many ranks.
  Trained Save(int ranks, int replica_ranks = 0) const {
    Trained trained;
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      UnitTraining training(where(), kind(), communicator, true, 10, 4, replica_ranks);
      const auto checkpoint = OpenCheckpoint(worker, folder_.path());
      training.Train(0, 5);
      Trained here;
      here.middle = training.Values();
      here.optimizer = training.StateValues();
      auto state = ShardsOf(*training.model, *training.optimizer, "what the program adds");
      ASSERT_OK(state);
      EXPECT_OK(checkpoint->Save(5, *state));
      training.Train(5, 10);
      here.end = training.Values();
      EXPECT_OK(checkpoint->Wait());
      if (communicator.rank() == 0) trained = std::move(here);
    });
    return trained;
  }
  Trained Load(int ranks, bool in_units = true, int replica_ranks = 0) const {
    Trained trained;
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      UnitTraining training(where(), kind(), communicator, in_units, 10, 4, replica_ranks);
      const auto latest = OpenCheckpoint(worker, folder_.path())->Latest();
      ASSERT_OK(latest);
      ASSERT_TRUE(latest->has_value());
      std::string extra;
      ASSERT_OK(LoadShards(*training.model, *training.optimizer, (*latest)->shards, &extra));
      EXPECT_EQ(extra, "what the program adds");
      EXPECT_EQ((*latest)->shards.step(), 5);
      Trained here;
      here.middle = training.Values();
      here.optimizer = training.StateValues();
      training.Train(5, 10);
      here.end = training.Values();
      if (communicator.rank() == 0) trained = std::move(here);
    });
    return trained;
  }

  const ScratchFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Each, ShardedCheckpoints, EachWayAndKind(), NameOf);

// The loaded state has the bits that were saved. Training from there has the same bits with as many
// ranks; with another number sums may have another order.
TEST_P(ShardedCheckpoints, GoesOnWithAnyNumberOfRanks) {
  for (const int saved : {4, 1}) {
    const Trained expected = Save(saved);
    EXPECT_FALSE(expected.optimizer.empty());
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::to_string(saved) + " saved and " + std::to_string(ranks) + " loaded");
      const Trained trained = Load(ranks);
      ExpectSame(trained.middle, expected.middle);
      ExpectSame(trained.optimizer, expected.optimizer);
      ExpectClose(trained.end, expected.end);
      if (ranks == saved) ExpectSame(trained.end, expected.end);
    }
  }
}

// The first replica's shards are saved to files, and every replica loads them.
TEST_P(ShardedCheckpoints, GoesOnFromReplicas_AndInReplicas) {
  const Trained expected = Save(4, 2);
  for (const auto& [ranks, replica_ranks] : {std::pair(3, 0), {4, 2}, {4, 1}}) {
    const Trained trained = Load(ranks, true, replica_ranks);
    ExpectSame(trained.middle, expected.middle);
    ExpectSame(trained.optimizer, expected.optimizer);
    ExpectClose(trained.end, expected.end);
  }
}

TEST_P(ShardedCheckpoints, GoesOnWithOtherUnits) {
  const Trained expected = Save(3);
  for (const int ranks : {2, 3}) {
    const Trained trained = Load(ranks, /*in_units=*/false);
    ExpectSame(trained.middle, expected.middle);
    ExpectSame(trained.optimizer, expected.optimizer);
    ExpectClose(trained.end, expected.end);
  }
}

// The net has parameters without a gradient, buffers, and tensors without elements.
struct OddNet : torch::nn::Module {
  explicit OddNet(float value) {
    trained = register_parameter("trained", torch::full({3, 5}, value));
    frozen = register_parameter("frozen", torch::full({7}, value), /*requires_grad=*/false);
    register_parameter("scalar", torch::full({}, value));
    sum = register_buffer("sum", torch::full({4}, value));
    register_buffer("count", torch::full({}, static_cast<int64_t>(value)));
    register_buffer("none", torch::empty({0}));
  }
  torch::Tensor forward(torch::Tensor x) { return (x * trained).sum() + frozen.sum(); }
  torch::Tensor trained, frozen, sum;
};

TEST(ShardedCheckpointOf, AModelWithFrozenParametersAndBuffers) {
  const ScratchFolder folder;
  for (const int ranks : {4, 3}) {
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      const bool saves = ranks == 4;
      const auto net = std::make_shared<OddNet>(saves ? 2 : 1);
      auto model = FullySharded<OddNet>::Create(net, {}, communicator, UnitOptions());
      ASSERT_OK(model);
      torch::optim::Adagrad optimizer((*model)->shards(), torch::optim::AdagradOptions(0.1));
      const auto checkpoint = OpenCheckpoint(worker, folder.path());
      if (saves) {
        SaveAndWait(*checkpoint, 1, ShardsOf(**model, optimizer));
        return;
      }
      const auto latest = checkpoint->Latest();
      ASSERT_OK(latest);
      ASSERT_OK(LoadShards(**model, optimizer, (*latest)->shards));
      const auto whole = FullySharded<OddNet>::FullParameters::Gather(**model);
      ASSERT_OK(whole);
      for (const auto& tensor : net->parameters()) EXPECT_TRUE((tensor == 2).all().item<bool>());
      for (const auto& tensor : net->buffers()) EXPECT_TRUE((tensor == 2).all().item<bool>());
    });
  }
}

// The device reads a part when its stream gets there, while the host has gone on.
TEST(ShardedCheckpointOf, AModelWhosePartsADeviceIsAboutToRead) {
  const ScratchFolder folder;
  OnEachWorker(1, 1, [&](Worker& worker, Communicator& communicator) {
    const torch::Device device = DeviceFor(Where::kOnDevice, communicator);
    const auto net = std::make_shared<UnitNet>();
    net->to(device);
    FullyShardedOptions options = UnitOptions(Where::kOnDevice);
    options.offload_to_host = true;
    auto model = UnitModel::Create(net, net->units(), communicator, options);
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(Kind::kSgd, (*model)->shards());
    const auto checkpoint = OpenCheckpoint(worker, folder.path());
    SaveAndWait(*checkpoint, 1, ShardsOf(**model, *optimizer));
    const auto latest = checkpoint->Latest();
    ASSERT_OK(latest);

    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& shard : (*model)->shards()) shard.zero_();
    const torch::Tensor input = InputFor(0, 0, device);
    const c10::Stream stream = *DeviceStream(device).Current();
    pretend::Hold(stream, true);
    const torch::Tensor of_zeros = (*model)->forward(input);
    const uint64_t waits = pretend::HostWaits(device);
    std::atomic<bool> loaded{false};
    std::thread loading([&] {
      EXPECT_OK(LoadShards(**model, *optimizer, (*latest)->shards));
      loaded = true;
    });
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (!loaded && pretend::HostWaits(device) == waits &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    pretend::Hold(stream, false);
    loading.join();
    EXPECT_TRUE((of_zeros.cpu() == 0).all().item<bool>());
    EXPECT_FALSE(((*model)->forward(input).cpu() == 0).any().item<bool>());
  });
}

// Checks each rank's error when it loads what a smaller net with Adam saved.
template <typename Matcher>
void ExpectAnother(const std::string& path, Kind kind, int width, int blocks,
                   const Matcher& matcher) {
  OnEachWorker(2, 1, [&](Worker& worker, Communicator& communicator) {
    UnitTraining training(Where::kHost, kind, communicator, true, width, blocks);
    training.Train(0, 2);
    const auto before = training.Values();
    const auto optimizer = training.StateValues();
    const auto latest = OpenCheckpoint(worker, path)->Latest();
    ASSERT_OK(latest);
    EXPECT_THAT(
        LoadShards(*training.model, *training.optimizer, (*latest)->shards),
        StatusIs(StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("rank " + std::to_string(communicator.rank()) + ": "), matcher)));
    // The state from before the failed load is unchanged, and training goes on.
    ExpectSame(training.Values(), before);
    ExpectSame(training.StateValues(), optimizer);
    training.Train(2, 3);
  });
}

TEST(ShardedCheckpointErrors, AnotherModelOrOptimizer) {
  const ScratchFolder folder;
  OnEachWorker(2, 1, [&](Worker& worker, Communicator& communicator) {
    UnitTraining training(Where::kHost, Kind::kAdam, communicator);
    training.Train(0, 1);
    const auto checkpoint = OpenCheckpoint(worker, folder.path());
    SaveAndWait(*checkpoint, 1, ShardsOf(*training.model, *training.optimizer));
  });
  const std::string& path = folder.path();
  ExpectAnother(path, Kind::kAdam, 11, 4,
                AllOf(HasSubstr("parameter 'stem.weight' is Float [11, 12] in this one"),
                      HasSubstr("Float [10, 12] there")));
  ExpectAnother(path, Kind::kAdam, 10, 5,
                AllOf(HasSubstr("parameter 'block4."), HasSubstr("missing there")));
  ExpectAnother(path, Kind::kAdam, 10, 3, HasSubstr("it has 'block3."));
  ExpectAnother(path, Kind::kSgd, 10, 4,
                AllOf(HasSubstr("torch::optim::Adam"), HasSubstr("torch::optim::SGD")));
}

TEST(ShardedCheckpointErrors, AnOptimizerThatIsNotOverShards) {
  OnEachWorker(2, 1, [&](Worker&, Communicator& communicator) {
    UnitTraining training(Where::kHost, Kind::kAdam, communicator);
    const auto other = MakeOptimizer(Kind::kAdam, std::vector<torch::Tensor>{torch::ones({3})});
    EXPECT_THAT(ShardsOf(*training.model, *other).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("make it over shards()")));
  });
}

}  // namespace

// Training with a sharded optimizer goes on from what each rank saved by itself.

namespace {

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

  // Returns the tensors of the full state on rank 0, as UnitTraining does.
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

// The result of a training on rank 0, after step 5 and in the end.
struct TrainedByStage {
  std::vector<torch::Tensor> middle, optimizer, end;
};

class OptimizerShards : public ShardedTraining {
 protected:
  TrainedByStage Save(int ranks, bool shards_gradients) const {
    TrainedByStage trained;
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      StageTraining training(where(), kind(), communicator, shards_gradients);
      const auto checkpoint = OpenCheckpoint(worker, folder_.path());
      training.Train(0, 5);
      TrainedByStage here;
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
  TrainedByStage Load(int ranks, bool shards_gradients) const {
    TrainedByStage trained;
    OnEachWorker(ranks, 1, [&](Worker& worker, Communicator& communicator) {
      StageTraining training(where(), kind(), communicator, shards_gradients);
      const auto latest = OpenCheckpoint(worker, folder_.path())->Latest();
      ASSERT_OK(latest);
      ASSERT_TRUE(latest->has_value());
      std::string extra;
      ASSERT_OK(LoadShards(*training.net, *training.optimizer, (*latest)->shards, &extra));
      EXPECT_EQ(extra, kExtra);
      TrainedByStage here;
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
    const TrainedByStage expected = Save(4, shards_gradients);
    EXPECT_FALSE(expected.optimizer.empty());
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(ranks);
      const TrainedByStage trained = Load(ranks, shards_gradients);
      ExpectSame(trained.middle, expected.middle);
      ExpectSame(trained.optimizer, expected.optimizer);
      ExpectClose(trained.end, expected.end);
      if (ranks == 4) ExpectSame(trained.end, expected.end);
    }
  }
}

TEST_P(OptimizerShards, AreThoseOfStage3_AndTheOtherWayRound) {
  const TrainedByStage expected = Save(3, true);
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
  const TrainedByStage trained = Load(3, false);
  ExpectSame(trained.middle, expected.middle);
  ExpectSame(trained.optimizer, expected.optimizer);
}

// What a rank keeps in memory can be loaded only by the same rank.
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

// A rank's shards come back from its node's memory, from a partner's, or from files.

namespace {

constexpr int kRanks = 4;
constexpr int kNodes = 2;

class PartnerShards : public ::testing::TestWithParam<std::tuple<Where, Kind>> {
 protected:
  static Where where() { return std::get<0>(GetParam()); }
  static Kind kind() { return std::get<1>(GetParam()); }

  std::string MemoryOf(int node) const { return folder_.path() + "/node-" + std::to_string(node); }
  std::string Files() const { return folder_.path() + "/files"; }
  std::unique_ptr<MemoryCheckpoint> OpenMemory(Worker& worker) const {
    MemoryCheckpointOptions options;
    options.timeout = kLong;
    options.directory = MemoryOf(worker.place().node_rank);
    std::filesystem::create_directories(options.directory);
    auto opened = MemoryCheckpoint::Open(worker, options);
    EXPECT_OK(opened);
    return *std::move(opened);
  }
  // Saves to memory in each step, and to files after step 3. Returns the values in the end.
  std::vector<torch::Tensor> SaveUntil(int to) const {
    std::vector<torch::Tensor> end;
    OnEachWorker(kRanks, kNodes, [&](Worker& worker, Communicator& communicator) {
      UnitTraining training(where(), kind(), communicator);
      const auto files = OpenCheckpoint(worker, Files());
      const auto memory = OpenMemory(worker);
      std::unique_ptr<ShardedState> state;
      for (int step = 0; step < to; ++step) {
        training.Backward(step);
        ASSERT_OK(memory->Wait());
        training.Step();
        auto shards = ShardsOf(*training.model, *training.optimizer);
        ASSERT_OK(shards);
        state = std::make_unique<ShardedState>(*std::move(shards));
        if (step == 3) {
          ASSERT_OK(files->Save(3, *state));
        }
        const auto parts = state->Parts(step);
        ASSERT_OK(parts);
        ASSERT_OK(memory->Save(step, *parts));
      }
      ASSERT_OK(memory->Wait());
      ASSERT_OK(memory->WaitForPartner());
      ASSERT_OK(files->Wait());
      ASSERT_OK(worker.Barrier("saved", kLong));
      const auto values = training.Values();
      if (communicator.rank() == 0) end = values;
    });
    return end;
  }
  // Goes on from the newest checkpoint, which must be of `step`, to `to`.
  std::vector<torch::Tensor> GoOn(int ranks, int nodes, int step, bool in_memory, int to) const {
    std::vector<torch::Tensor> end;
    OnEachWorker(ranks, nodes, [&](Worker& worker, Communicator& communicator) {
      UnitTraining training(where(), kind(), communicator);
      const auto memory = OpenMemory(worker);
      const auto latest = OpenCheckpoint(worker, Files())->Latest(memory.get());
      ASSERT_OK(latest);
      ASSERT_TRUE(latest->has_value());
      EXPECT_EQ((*latest)->shards.step(), step);
      EXPECT_EQ((*latest)->shards.in_memory(), in_memory);
      ASSERT_OK(LoadShards(*training.model, *training.optimizer, (*latest)->shards));
      training.Train(step + 1, to);
      const auto values = training.Values();
      if (communicator.rank() == 0) end = values;
    });
    return end;
  }
  std::vector<torch::Tensor> Unbroken(int to) const {
    std::vector<torch::Tensor> end;
    OnEachWorker(kRanks, kNodes, [&](Worker&, Communicator& communicator) {
      UnitTraining training(where(), kind(), communicator);
      training.Train(0, to);
      const auto values = training.Values();
      if (communicator.rank() == 0) end = values;
    });
    return end;
  }

  const ScratchFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Each, PartnerShards,
                         ::testing::Combine(EachWay(), ::testing::Values(Kind::kAdam)), NameOf);

// Fault (checkpoint): A node that trains a sharded model is lost with its memory -> Each rank's
// part is read from a partner's memory, or from files if both are lost; the result is bitwise that
// of a run without the loss
TEST_P(PartnerShards, ALostNodesShardsComeFromItsPartner_AndAllNodesFromFiles) {
  const std::vector<torch::Tensor> expected = Unbroken(10);
  const std::vector<torch::Tensor> saved = Unbroken(6);
  for (const int lost : {0, 1}) {
    ExpectSame(SaveUntil(6), saved);
    std::filesystem::remove_all(MemoryOf(lost));
    ExpectSame(GoOn(kRanks, kNodes, 5, /*in_memory=*/true, 10), expected);
  }
  for (const int lost : {0, 1}) std::filesystem::remove_all(MemoryOf(lost));
  ExpectSame(GoOn(kRanks, kNodes, 3, /*in_memory=*/false, 10), expected);
}

TEST_P(PartnerShards, AnotherNumberOfRanksGoesOnFromFiles) {
  SaveUntil(6);
  ExpectClose(GoOn(3, 1, 3, /*in_memory=*/false, 10), Unbroken(10));
}

}  // namespace

}  // namespace cadre::nn
