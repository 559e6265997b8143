// A rank's shards that come back from its node's memory, from a partner's, or from files.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/memory_checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/sharded_checkpoint/shards_rig_for_test.h"

namespace cadre::nn {
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
  // In each step to memory, and after step 3 to files. The values in the end.
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
  // From the newest, which is of `step`, on to `to`.
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
