// The models that the tests of ShardedGradScaler train, one for each wrapper.
#ifndef CADRE_WORKER_RUNTIME_TORCH_MIXED_PRECISION_SCALED_TRAINING_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_MIXED_PRECISION_SCALED_TRAINING_FOR_TEST_H_

#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/status_macros.h"
#include "cadre/torch/distributed_optimizer.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Matches a Result<bool> that is OK and tells whether the step was made (true) or left out (false).
MATCHER_P(Stepped, stepped, "") {
  if (!arg.ok()) *result_listener << arg.status();
  return arg.ok() && *arg == stepped;
}

inline GradScalerOptions ScalerOptions(int64_t growth_interval = 3) {
  GradScalerOptions options;
  options.growth_interval = growth_interval;
  options.timeout = kLong;
  return options;
}

enum class Wrapper {
  kDataParallel,
  kStage1,
  kStage2,
  kFullySharded,
  // Two of four ranks share one replica; with fewer ranks every rank holds a whole one.
  kHybrid,
  kDistributedOptimizer
};

// A model in one of the wrappers, and Adam.
class Trained {
 public:
  Trained(Wrapper wrapper, Where where, Communicator& communicator)
      : net_(std::make_shared<UnitNet>(1 + communicator.rank())) {
    net_->to(DeviceFor(where, communicator));
    if (wrapper == Wrapper::kFullySharded || wrapper == Wrapper::kHybrid) {
      const int local_size = wrapper == Wrapper::kFullySharded ? 0
                             : communicator.size() == 4        ? 2
                                                               : 1;
      among_ = std::make_unique<ModelRanks>(communicator, local_size, UnitOptions(where));
      fully_sharded_ =
          *FullySharded<UnitNet>::Create(net_, net_->units(), among_->shards(), among_->options);
      plain_ = MakeOptimizer(Kind::kAdam, fully_sharded_->shards());
      return;
    }
    plain_ = MakeOptimizer(Kind::kAdam, net_->parameters());
    if (wrapper == Wrapper::kDistributedOptimizer) {
      distributed_ = *DistributedOptimizer::Create(*plain_, communicator, kLong);
      return;
    }
    DataParallelOptions options = SmallBuckets();
    options.connect_device = ConnectFor(where);
    options.reducer.non_finite = NonFinite::kIgnore;
    if (wrapper != Wrapper::kDataParallel) {
      sharded_ = *ShardedOptimizer::Create(*net_, *plain_, communicator, OptimizerOptions(where));
    }
    if (wrapper == Wrapper::kStage2) {
      model_ = *ShardedDataParallel<UnitNet>::Create(net_, *sharded_, options);
    } else {
      model_ = *DataParallel<UnitNet>::Create(net_, communicator, options);
    }
  }

  // A null scaler means training without one.
  void UseScaler(ShardedGradScaler* scaler) {
    scaler_ = scaler;
    if (distributed_ != nullptr) distributed_->UseScaler(scaler);
  }

  torch::Tensor Forward(const torch::Tensor& input) {
    if (fully_sharded_ != nullptr) return fully_sharded_->forward(input);
    return model_ != nullptr ? model_->forward(input) : net_->forward(input);
  }
  // Runs a step's passes up to and including Finish().
  void Backward(const torch::Tensor& loss) {
    if (model_ != nullptr) model_->ZeroGrad();
    if (fully_sharded_ != nullptr) fully_sharded_->ZeroGrad();
    (scaler_ == nullptr ? loss : scaler_->Scale(loss)).backward();
    ASSERT_OK(fully_sharded_ != nullptr ? fully_sharded_->Finish() : model_->Finish().status());
  }
  Result<bool> Step() {
    if (scaler_ != nullptr && fully_sharded_ != nullptr) {
      return scaler_->Step(*fully_sharded_, *plain_);
    }
    if (scaler_ != nullptr && sharded_ != nullptr) return scaler_->Step(*sharded_);
    if (scaler_ != nullptr) return scaler_->Step(*plain_);
    if (fully_sharded_ != nullptr) CADRE_RETURN_IF_ERROR(fully_sharded_->Step(*plain_));
    if (sharded_ != nullptr) CADRE_RETURN_IF_ERROR(sharded_->Step());
    if (fully_sharded_ == nullptr && sharded_ == nullptr) plain_->step();
    return true;
  }
  // Runs a whole step; returns whether the scaler let the optimizer step.
  bool Train(const torch::Tensor& loss) {
    const double before = scaler_ == nullptr ? 1 : scaler_->scale();
    if (distributed_ != nullptr) {
      EXPECT_OK(distributed_->BackwardAndUpdate(loss));
      return scaler_ == nullptr || scaler_->scale() >= before;
    }
    Backward(loss);
    const Result<bool> stepped = Step();
    EXPECT_OK(stepped);
    if (scaler_ != nullptr) {
      EXPECT_OK(scaler_->Update());
    }
    return stepped.ok() && *stepped;
  }

  // Returns the parameters whose gradients this rank alone has, or all of them where every rank has
  // all gradients.
  std::vector<torch::Tensor> OwnParameters(const Communicator& communicator) const {
    std::vector<torch::Tensor> own;
    for (const torch::Tensor& parameter : plain_->param_groups()[0].params()) {
      if (sharded_ == nullptr || sharded_->OwnerOf(parameter) == communicator.rank()) {
        own.push_back(parameter);
      }
    }
    return own;
  }
  std::vector<torch::Tensor> Values() {
    if (fully_sharded_ == nullptr) return ParametersOf(*net_);
    const auto full = FullySharded<UnitNet>::FullParameters::Gather(*fully_sharded_);
    EXPECT_OK(full);
    return ParametersOf(*net_);
  }
  torch::optim::Optimizer& plain() { return *plain_; }
  ShardedOptimizer& sharded() { return *sharded_; }

 private:
  const std::shared_ptr<UnitNet> net_;
  std::unique_ptr<torch::optim::Optimizer> plain_;
  std::unique_ptr<ShardedOptimizer> sharded_;
  std::unique_ptr<DataParallel<UnitNet>> model_;
  std::unique_ptr<ModelRanks> among_;
  std::unique_ptr<FullySharded<UnitNet>> fully_sharded_;
  std::unique_ptr<DistributedOptimizer> distributed_;
  ShardedGradScaler* scaler_ = nullptr;
};

// The body of a test that trains on the host in stage 2 of sharding.
using ScaledTraining = std::function<void(Communicator&, Trained&, ShardedGradScaler&)>;

inline void WithStage2(int ranks, const ScaledTraining& body, int64_t growth_interval = 3) {
  OnEachRank(ranks, [&](Communicator& communicator) {
    Trained trained(Wrapper::kStage2, Where::kHost, communicator);
    auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions(growth_interval));
    ASSERT_OK(scaler);
    trained.UseScaler(scaler->get());
    body(communicator, trained, **scaler);
  });
}

inline torch::Tensor LossOf(Communicator& communicator, Trained& trained, int step = 0) {
  return trained.Forward(InputFor(communicator.rank(), step, torch::kCPU)).pow(2).mean();
}

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_MIXED_PRECISION_SCALED_TRAINING_FOR_TEST_H_
