// The common interface of the two ways to synchronize this program's ranks: hooked_model.h and
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

// The size, in elements, of the groups of parameters that are averaged in turn. The library's
// default would put this small network into one group.
inline constexpr size_t kPartialThreshold = 10000;

// What this rank trains, and with which ranks. Optimizer and communicator must outlive the
// Synchronization.
struct Replica {
  std::shared_ptr<Net> net;
  torch::optim::Optimizer& optimizer;
  Communicator& communicator;
  // The timeout of each exchange.
  std::chrono::nanoseconds timeout;
};

// What synchronization has cost this rank so far: `bytes` are those that it sent.
struct SynchronizationCost {
  uint64_t bytes = 0;
  // Set if the exchange overlaps the backward pass and is measured: how long it took, and how long
  // the rank waited for it afterwards.
  struct Times {
    std::chrono::nanoseconds communication{}, exposed_wait{};
  };
  std::optional<Times> times;
};

// The synchronization of one generation. One thread. All calls except Forward(), Load() and cost()
// are collective.
class Synchronization {
 public:
  virtual ~Synchronization() = default;

  // Returns the scores for the next step.
  virtual torch::Tensor Forward(const torch::Tensor& images) = 0;
  // Runs the backward pass, the exchange and the optimizer's step. `loss` is the mean over `own`
  // samples, out of the `all` that the ranks have in this step; it is undefined on a rank that has
  // none.
  virtual Status Step(const torch::Tensor& loss, int64_t own, int64_t all) = 0;
  // Is called after each step, once it has been counted: this may fail although the optimizer has
  // stepped.
  virtual Status AfterStep() { return OkStatus(); }
  // Must be called before the model is used as a whole, since replicas may differ between steps.
  virtual Status MakeReplicasEqual() { return OkStatus(); }

  // State that a way keeps between steps is part of the checkpoint: the archive receives every
  // rank's. Loading takes this rank's and changes nothing if there is none.
  virtual Status Save(torch::serialize::OutputArchive& archive) const = 0;
  virtual Status Load(int rank, torch::serialize::InputArchive& archive) = 0;

  virtual SynchronizationCost cost() const = 0;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_H_
