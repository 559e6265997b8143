// What the two ways to synchronize this program's ranks have in common: hooked_model.h and
// wrapped_optimizer.h. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_
#define CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "net.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::mnist {

// Of the parameters that are averaged in turn, in elements. The library's own would make one group
// of this small network.
inline constexpr size_t kPartialThreshold = 10000;

// What this rank trains, and with whom. Optimizer and communicator outlive the Synchronization.
struct Replica {
  std::shared_ptr<Net> net;
  torch::optim::Optimizer& optimizer;
  Communicator& communicator;
  // For each exchange.
  std::chrono::nanoseconds timeout;
};

// Given by this rank so far.
struct SynchronizationCost {
  uint64_t bytes = 0;
  // Where the exchange is beside the backward pass, and is measured: how long it took, and how long
  // it was waited for afterwards.
  struct Times {
    std::chrono::nanoseconds communication{}, exposed_wait{};
  };
  std::optional<Times> times;
};

// Of one generation. One thread. All calls but Forward(), Load() and cost() are collective.
class Synchronization {
 public:
  virtual ~Synchronization() = default;

  // Scores, for the next step.
  virtual torch::Tensor Forward(const torch::Tensor& images) = 0;
  // Backward pass, exchange and the optimizer's step. `loss` is the mean over `own` samples, of the
  // `all` of this step on all ranks; undefined on a rank that has none.
  virtual Status Step(const torch::Tensor& loss, int64_t own, int64_t all) = 0;
  // After each step, when it has been counted: what may fail although the optimizer has stepped.
  virtual Status AfterStep() { return OkStatus(); }
  // Before the model is looked at as a whole.
  virtual Status MakeReplicasEqual() { return OkStatus(); }

  // The memory of a way between steps is part of the checkpoint: every rank's goes into the
  // archive. Loading takes this rank's, and leaves things as they are where there is none.
  virtual Status Save(torch::serialize::OutputArchive& archive) const = 0;
  virtual Status Load(int rank, torch::serialize::InputArchive& archive) = 0;

  virtual SynchronizationCost cost() const = 0;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_
