// The ways in which this program can synchronize its ranks. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_
#define CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "cadre/communication_hook.h"
#include "cadre/hooks/partial.h"
#include "cadre/result.h"
#include "torch/nn/module.h"
#include "torch/serialize/archive.h"

namespace cadre::mnist {

// One thread. The memory of a way between steps is part of the checkpoint.
class Synchronization {
 public:
  // `way` is fp32, fp16, bf16, partial, topk or threshold; INVALID_ARGUMENT otherwise. The
  // parameters must stay where they are.
  static Result<Synchronization> Create(const std::string& way, const torch::nn::Module& module);

  // For ReducerOptions; null for fp32.
  const std::shared_ptr<CommunicationHook>& hook() const { return hook_; }

  // Collective. After each step of the optimizer, and before the model is looked at as a whole.
  Status AfterStep(Communicator& communicator, std::chrono::nanoseconds timeout);
  Status MakeReplicasEqual(Communicator& communicator, std::chrono::nanoseconds timeout);

  // Collective: every rank's part goes into the archive. Loading takes this rank's part, and leaves
  // things as they are where the archive has none.
  Status Save(Communicator& communicator, torch::serialize::OutputArchive& archive,
              std::chrono::nanoseconds timeout) const;
  Status Load(int rank, torch::serialize::InputArchive& archive);

  // Bytes that this rank gave to collectives so far, those of the reducer's steps as it says.
  uint64_t bytes() const {
    return step_bytes_ + (partial_ == nullptr ? 0 : partial_->bytes_given());
  }
  void AddStepBytes(uint64_t bytes) { step_bytes_ += bytes; }

 private:
  std::shared_ptr<CommunicationHook> hook_;
  // The same hook, if it is that one.
  std::shared_ptr<hooks::PartialHook> partial_;
  uint64_t step_bytes_ = 0;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_
