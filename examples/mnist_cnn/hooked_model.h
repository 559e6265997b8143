// --sync: DataParallel, which exchanges gradients beside the backward pass, with a communication
// hook. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_
#define CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_

#include <chrono>
#include <memory>
#include <string>

#include "cadre/communication_hook.h"
#include "cadre/hooks/partial.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/tensors.h"
#include "net.h"
#include "synchronization.h"

namespace cadre::mnist {

class HookedModel : public Synchronization {
 public:
  static Result<std::unique_ptr<Synchronization>> Create(const SynchronizationOptions& options,
                                                         std::shared_ptr<Net> net,
                                                         torch::optim::Optimizer& optimizer,
                                                         Communicator& communicator,
                                                         std::chrono::nanoseconds timeout);

  torch::Tensor Forward(const torch::Tensor& images) override;
  Status Step(const torch::Tensor& loss, int64_t own, int64_t all) override;
  Status AfterStep() override;
  Status MakeReplicasEqual() override;
  Status Save(torch::serialize::OutputArchive& archive) const override;
  Status Load(int rank, torch::serialize::InputArchive& archive) override;
  SynchronizationCost cost() const override;

 private:
  HookedModel(torch::optim::Optimizer& optimizer, Communicator& communicator,
              std::chrono::nanoseconds timeout)
      : optimizer_(optimizer), communicator_(communicator), timeout_(timeout) {}
  Status MakeHook(const SynchronizationOptions& options, const Net& net);

  torch::optim::Optimizer& optimizer_;
  Communicator& communicator_;
  const std::chrono::nanoseconds timeout_;
  // Null for fp32.
  std::shared_ptr<CommunicationHook> hook_;
  // The same hook, if it is that one, and the parameters that it averages.
  std::shared_ptr<hooks::PartialHook> partial_;
  nn::NamedTensors trained_;
  std::unique_ptr<nn::DataParallel<Net>> model_;
  // Of the reducer's steps.
  SynchronizationCost steps_;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_
