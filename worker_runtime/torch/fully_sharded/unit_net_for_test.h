// A model of several units, which the tests of FullySharded train.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_UNIT_NET_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_UNIT_NET_FOR_TEST_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/hybrid_sharding.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/utils.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {

struct UnitBlock : torch::nn::Module {
  explicit UnitBlock(int width) {
    inner = register_module("inner", torch::nn::Linear(width, 2 * width + 1));
    outer = register_module("outer", torch::nn::Linear(2 * width + 1, width));
  }
  torch::Tensor forward(torch::Tensor x) { return x + outer(torch::tanh(CallUnit(inner, x))); }
  torch::nn::Linear inner{nullptr};
  torch::nn::Linear outer{nullptr};
};

struct UnitNet : torch::nn::Module {
  explicit UnitNet(int seed = 1, int width = 10, int count = 4) {
    stem = register_module("stem", torch::nn::Linear(12, width));
    for (int i = 0; i < count; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<UnitBlock>(width)));
    }
    head = register_module("head", torch::nn::Linear(width, 3));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(0.2 *
                      (torch::arange(parameter.numel()) * 0.7 + seed).sin().view_as(parameter));
    }
  }
  // The forward pass leaves out the first `skipped` blocks.
  torch::Tensor forward(torch::Tensor x, size_t skipped = 0) {
    x = torch::tanh(stem(x));
    for (size_t i = skipped; i < blocks.size(); ++i) x = CallUnit(blocks[i], x);
    return torch::tanh(head(x)).sum(1);
  }
  std::vector<std::string> units() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < blocks.size(); ++i) names.push_back("block" + std::to_string(i));
    return names;
  }
  torch::nn::Linear stem{nullptr};
  std::vector<std::shared_ptr<UnitBlock>> blocks;
  torch::nn::Linear head{nullptr};
};

inline size_t ParameterBytes(const torch::nn::Module& module) {
  size_t bytes = 0;
  for (const torch::Tensor& parameter : module.parameters()) bytes += parameter.nbytes();
  return bytes;
}

inline FullyShardedOptions UnitOptions(Where where = Where::kHost) {
  FullyShardedOptions options;
  options.timeout = kLong;
  options.connect_device = ConnectFor(where);
  return options;
}

// The communicators of a model over all of these ranks. If `local_size` is not 0, every
// `local_size` ranks hold one replica.
struct ModelRanks {
  ModelRanks(Communicator& communicator, int local_size, FullyShardedOptions given)
      : options(std::move(given)), all(communicator) {
    if (local_size == 0) return;
    auto split = SplitByNode(communicator, local_size, kLong);
    EXPECT_OK(split);
    groups = *std::move(split);
    options.replicas = groups.replicas.get();
  }
  Communicator& shards() const { return groups.shards == nullptr ? all : *groups.shards; }

  FullyShardedOptions options;
  Communicator& all;
  HybridGroups groups;
};

// One rank's model, for tests of what the other ranks see when one of them is lost.
class UnitRank {
 public:
  UnitRank(Where where, Communicator& communicator, int local_size = 0)
      : device_(DeviceFor(where, communicator)),
        among_(communicator, local_size, UnitOptions(where)) {
    const auto net = std::make_shared<UnitNet>();
    net->to(device_);
    auto created =
        FullySharded<UnitNet>::Create(net, net->units(), among_.shards(), among_.options);
    EXPECT_OK(created);
    model_ = *std::move(created);
  }

  torch::Tensor Loss(int step = 0) { return model_->forward(InputFor(0, step, device_)).mean(); }
  // The backward passes end, and the loss of a rank is reported; with devices some steps later.
  void ExpectToHear(const torch::Tensor& loss) {
    const auto optimizer = MakeOptimizer(Kind::kAdam, model_->shards());
    loss.backward();
    Status status = model_->Finish();
    for (int step = 1; step < 1000 && status.ok(); ++step) {
      const torch::Tensor again = Loss(step);
      again.backward();
      (void)again.cpu();
      status = model_->Finish();
    }
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(model_->Step(*optimizer).ok());
  }
  void LoseModel() { model_.reset(); }
  const ModelRanks& among() const { return among_; }

 private:
  const torch::Device device_;
  const ModelRanks among_;
  std::unique_ptr<FullySharded<UnitNet>> model_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_UNIT_NET_FOR_TEST_H_
