// --dist_option: DistributedOptimizer, as SINGA's DistOpt has it. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_WRAPPED_OPTIMIZER_H_
#define CADRE_EXAMPLES_MNIST_CNN_WRAPPED_OPTIMIZER_H_

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "cadre/torch/distributed_optimizer.h"
#include "net.h"
#include "synchronization.h"

namespace cadre::mnist {

// SINGA's ways, as its programs for one and for several machines call them.
enum class DistOption { kPlain, kHalf, kPartialUpdate, kSparseTopK, kSparseThreshold };

// plain or fp32, half or fp16, partialUpdate, sparseTopK, sparseThreshold; INVALID_ARGUMENT.
Result<DistOption> ParseDistOption(const std::string& name);

class WrappedOptimizer : public Synchronization {
 public:
  static Result<std::unique_ptr<Synchronization>> Create(const SynchronizationOptions& options,
                                                         std::shared_ptr<Net> net,
                                                         torch::optim::Optimizer& optimizer,
                                                         Communicator& communicator,
                                                         std::chrono::nanoseconds timeout);

  torch::Tensor Forward(const torch::Tensor& images) override { return net_->forward(images); }
  Status Step(const torch::Tensor& loss, int64_t own, int64_t all) override;
  Status MakeReplicasEqual() override;
  Status Save(torch::serialize::OutputArchive& archive) const override;
  Status Load(int rank, torch::serialize::InputArchive& archive) override;
  SynchronizationCost cost() const override;

 private:
  WrappedOptimizer(DistOption option, double sparsity, std::shared_ptr<Net> net,
                   std::unique_ptr<nn::DistributedOptimizer> optimizer, Communicator& communicator,
                   std::chrono::nanoseconds timeout)
      : option_(option),
        sparsity_(sparsity),
        net_(std::move(net)),
        optimizer_(std::move(optimizer)),
        communicator_(communicator),
        timeout_(timeout) {}
  Status BackwardAndUpdate(const torch::Tensor& loss);

  const DistOption option_;
  const double sparsity_;
  const std::shared_ptr<Net> net_;
  const std::unique_ptr<nn::DistributedOptimizer> optimizer_;
  Communicator& communicator_;
  const std::chrono::nanoseconds timeout_;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_WRAPPED_OPTIMIZER_H_
