// Training whose ranks have a Worker, and so can make checkpoints, for the tests of sharded ones.
#ifndef CADRE_WORKER_RUNTIME_TORCH_SHARDED_CHECKPOINT_SHARDS_RIG_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_SHARDED_CHECKPOINT_SHARDS_RIG_FOR_TEST_H_

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/sharded_checkpoint.h"
#include "cadre/torch/hybrid_sharding.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"
#include "worker_runtime/torch/optimizer_state.h"

namespace cadre::nn {

using UnitModel = FullySharded<UnitNet>;

// A directory that is removed when the test ends.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = ::testing::TempDir() + "/shards_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void OnEachWorker(int ranks, int nodes,
                         const std::function<void(Worker&, Communicator&)>& body) {
  torch::set_num_threads(1);
  testing::InProcessWorkers workers(ranks, nodes);
  workers.Run([&](Worker& worker) {
    CommunicatorOptions options;
    options.timeout = kLong;
    auto communicator = sockets::ConnectSockets(worker, options);
    ASSERT_OK(communicator);
    body(worker, **communicator);
  });
}

inline std::unique_ptr<ShardedCheckpoint> OpenCheckpoint(Worker& worker, const std::string& path) {
  ShardedCheckpointOptions options;
  options.timeout = kLong;
  auto opened = ShardedCheckpoint::Open(worker, path, options);
  EXPECT_OK(opened);
  return *std::move(opened);
}

inline void SaveAndWait(ShardedCheckpoint& checkpoint, int64_t step,
                        const Result<ShardedState>& state) {
  ASSERT_OK(state);
  ASSERT_OK(checkpoint.Save(step, *state));
  ASSERT_OK(checkpoint.Wait());
}

// Loads a saved full optimizer state into an optimizer over an unsharded net and returns its
// tensors.
inline std::vector<torch::Tensor> StateTensors(Kind kind, const std::string& saved, int width = 10,
                                               int blocks = 4) {
  const UnitNet plain(1, width, blocks);
  const auto over_all = MakeOptimizer(kind, plain.parameters());
  auto archive = ArchiveOf(saved);
  over_all->load(archive);
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : plain.parameters()) {
    const auto state = over_all->state().find(StateKey(parameter));
    if (state == over_all->state().end()) continue;
    std::vector<torch::Tensor*> tensors;
    EXPECT_TRUE(TensorsOf(*state->second, &tensors));
    for (const torch::Tensor* const tensor : tensors) {
      if (tensor->defined()) values.push_back(*tensor);
    }
  }
  return values;
}

// One rank's model and optimizer. All ranks train on the same data, so that the number of ranks
// changes nothing but the order of sums.
struct UnitTraining {
  UnitTraining(Where where, Kind kind, Communicator& communicator, bool in_units = true,
               int width = 10, int blocks = 4, int replica_ranks = 0)
      : kind(kind),
        width(width),
        blocks(blocks),
        rank(communicator.rank()),
        device(DeviceFor(where, communicator)) {
    net = std::make_shared<UnitNet>(1 + communicator.rank(), width, blocks);
    net->to(device);
    const auto units = in_units ? net->units() : std::vector<std::string>();
    FullyShardedOptions options = UnitOptions(where);
    if (replica_ranks > 0) {
      auto split = SplitByNode(communicator, replica_ranks, kLong);
      EXPECT_OK(split);
      groups = *std::move(split);
      options.replicas = groups.replicas.get();
    }
    auto created = UnitModel::Create(net, units, replica_ranks > 0 ? *groups.shards : communicator,
                                     std::move(options));
    EXPECT_OK(created);
    model = *std::move(created);
    optimizer = MakeOptimizer(kind, model->shards());
  }

  void Backward(int step) {
    model->forward(InputFor(0, step, device)).pow(2).mean().backward();
    ASSERT_OK(model->Finish());
  }
  void Step() {
    ASSERT_OK(model->Step(*optimizer));
    model->ZeroGrad();
  }
  void Train(int from, int to) {
    for (int step = from; step < to; ++step) {
      Backward(step);
      Step();
    }
  }

  // Returns the full parameters, on all ranks.
  std::vector<torch::Tensor> Values() {
    const auto whole = UnitModel::FullParameters::Gather(*model);
    EXPECT_OK(whole);
    return ParametersOf(*net);
  }
  // Returns the tensors of the full optimizer state on rank 0, and nothing on other ranks.
  std::vector<torch::Tensor> StateValues() {
    torch::serialize::OutputArchive saved;
    EXPECT_OK(model->SaveOptimizerState(*optimizer, saved));
    if (rank != 0) return {};
    return StateTensors(kind, TextOf(saved), width, blocks);
  }

  const Kind kind;
  const int width;
  const int blocks;
  const int rank;  // in the world
  const torch::Device device;
  // The communicators of hybrid sharding; they outlive the model.
  HybridGroups groups;
  std::shared_ptr<UnitNet> net;
  std::unique_ptr<UnitModel> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_SHARDED_CHECKPOINT_SHARDS_RIG_FOR_TEST_H_
