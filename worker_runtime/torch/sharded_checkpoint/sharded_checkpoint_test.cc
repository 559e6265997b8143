// Training of sharded models that goes on from what each rank saved by itself.
#include "cadre/torch/sharded_checkpoint.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/device_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/optim/adagrad.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/sharded_checkpoint/shards_rig_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What training came to on rank 0.
struct Trained {
  // After step 5, and in the end.
  std::vector<torch::Tensor> middle;
  std::vector<torch::Tensor> optimizer;
  std::vector<torch::Tensor> end;
};

class ShardedCheckpoints : public ShardedTraining {
 protected:
  // Saves after step 5 and goes on at once to step 10, while files are written.
  // With `replica_ranks`, each replica has so many ranks.
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

// The state has the bits that were saved. So has training from there with as many ranks; with
// another number sums may have another order.
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

// A file gets what the first replica has, and every replica loads it.
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

// Parameters that have no gradient, buffers, and what has no elements.
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

// Its device reads a part when it comes to that, and the host goes on meanwhile.
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

// What each rank is told when it loads what a smaller net with Adam saved.
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
    // What there was before stays, and training goes on.
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
}  // namespace cadre::nn
