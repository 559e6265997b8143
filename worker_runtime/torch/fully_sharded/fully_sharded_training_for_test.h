// Trains a model of several units with FullySharded and with DataParallel, and compares the
// results.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FULLY_SHARDED_TRAINING_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FULLY_SHARDED_TRAINING_FOR_TEST_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/wait_or_abort.h"
#include "gtest/gtest.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adam.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {

class FullyShardedTraining : public ShardedTraining {
 protected:
  using Model = FullySharded<UnitNet>;
  using Whole = DataParallel<UnitNet>;

  static std::shared_ptr<UnitNet> MakeUnits(const Communicator& communicator, int width = 10) {
    auto net = std::make_shared<UnitNet>(1 + communicator.rank(), width);
    net->to(DeviceFor(where(), communicator));
    return net;
  }

  // Runs the passes of one step. Both kinds of model have forward(), Finish() and NoSync.
  template <typename AnyModel>
  static void OnePass(Communicator& communicator, AnyModel& model, int step) {
    model.forward(Input(communicator, step)).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  }
  static constexpr auto kOnePass = [](Communicator& communicator, auto& model, int step) {
    OnePass(communicator, model, step);
  };

  // Returns one rank's full (unsharded) parameters after `steps` steps.
  template <typename Passes>
  static std::vector<torch::Tensor> Trained(Communicator& communicator, Model& model, int steps,
                                            const Passes& passes, double max_norm = 0) {
    const auto optimizer = MakeOptimizer(kind(), model.shards());
    for (int step = 0; step < steps; ++step) {
      passes(communicator, model, step);
      if (max_norm > 0) {
        EXPECT_OK(model.ClipGradNorm(max_norm));
      }
      EXPECT_OK(model.Step(*optimizer));
      model.ZeroGrad();
    }
    const auto full = Model::FullParameters::Gather(model);
    EXPECT_OK(full);
    return ParametersOf(model.module());
  }

  // Returns each rank's full parameters after `steps` steps. If `local_size` is not 0, every
  // `local_size` ranks hold one replica (hybrid sharding).
  template <typename Passes>
  static RanksValues Sharded(int ranks, int steps, const Passes& passes,
                             const FullyShardedOptions& options, double max_norm = 0,
                             int local_size = 0) {
    RanksValues values(static_cast<size_t>(ranks));
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeUnits(communicator);
      const ModelRanks among(communicator, local_size, options);
      auto model = Model::Create(net, net->units(), among.shards(), among.options);
      ASSERT_OK(model);
      values[static_cast<size_t>(communicator.rank())] =
          Trained(communicator, **model, steps, passes, max_norm);
    });
    return values;
  }

  template <typename Passes>
  static RanksValues Unsharded(int ranks, int steps, const Passes& passes, double max_norm = 0) {
    RanksValues values(static_cast<size_t>(ranks));
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeUnits(communicator);
      auto model = Whole::Create(net, communicator, Options());
      ASSERT_OK(model);
      const auto optimizer = MakeOptimizer(kind(), net->parameters());
      for (int step = 0; step < steps; ++step) {
        passes(communicator, **model, step);
        if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
        optimizer->step();
        (*model)->ZeroGrad();
      }
      values[static_cast<size_t>(communicator.rank())] = ParametersOf(*net);
    });
    return values;
  }

  template <typename Passes>
  static void ExpectAsUnsharded(int ranks, int steps, const Passes& passes,
                                const FullyShardedOptions& options = UnitOptions(where()),
                                double max_norm = 0, int local_size = 0) {
    const RanksValues ours = Sharded(ranks, steps, passes, options, max_norm, local_size);
    ExpectClose(ours, Unsharded(ranks, steps, passes, max_norm), ranks <= 2 && max_norm == 0);
  }

  // Checks how many bytes a rank holds of parameters, gradients and Adam's state after some steps:
  // (4 + 4 + 8) bytes for each float32 parameter, divided by the number of ranks that share a
  // replica.
  static void ExpectAPartOnEachRank(int ranks, int local_size) {
    const int parts = local_size == 0 ? ranks : local_size;
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto barrier = [&] {
        ASSERT_OK(WaitOrAbort(communicator, communicator.Barrier(), kLong));
      };
      barrier();
      const size_t before = pretend::LiveBytes();
      barrier();
      const auto net = MakeUnits(communicator, 64);
      const size_t all = ParameterBytes(*net);
      const ModelRanks among(communicator, local_size, UnitOptions(where()));
      auto model = Model::Create(net, net->units(), among.shards(), among.options);
      ASSERT_OK(model);
      torch::optim::Adam adam((*model)->shards(), torch::optim::AdamOptions(0.01));
      for (int step = 0; step < 3; ++step) {
        (*model)->ZeroGrad();
        OnePass(communicator, **model, step);
        ASSERT_OK((*model)->Step(adam));
        EXPECT_EQ((*model)->gathered_bytes(), 0u);
      }
      size_t here = 0;
      for (const torch::Tensor& shard : (*model)->shards()) here += BytesOf(shard) * 2;
      for (const auto& item : adam.state()) {
        auto& state = static_cast<torch::optim::AdamParamState&>(*item.second);
        here += BytesOf(state.exp_avg()) + BytesOf(state.exp_avg_sq());
      }
      for (const torch::Tensor& parameter : net->parameters()) {
        here += BytesOf(parameter) + BytesOf(parameter.grad());
        EXPECT_LE(parameter.storage().nbytes(), 0u);
      }
      const double part = 4 * static_cast<double>(all) / parts;
      EXPECT_GE(here, part);
      EXPECT_LE(here, 1.1 * part);
      // LiveBytes() counts the devices of all ranks.
      barrier();
      if (where() != Where::kHost) {
        EXPECT_LE(pretend::LiveBytes() - before, 1.1 * part * ranks);
      }
      barrier();
    });
  }

 private:
  static size_t BytesOf(const torch::Tensor& tensor) {
    return tensor.defined() ? tensor.nbytes() : 0;
  }
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_FULLY_SHARDED_TRAINING_FOR_TEST_H_
