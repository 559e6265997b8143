// SINGA's DistOpt for libtorch: wraps an optimizer and does backward pass, exchange and update in
// one call, in one of five ways. For training code that has no module to wrap; DataParallel
// overlaps the exchange with the backward pass.
//
//   torch::optim::SGD sgd(net->parameters(), 0.05);
//   CADRE_ASSIGN_OR_RETURN(auto optimizer, DistributedOptimizer::Create(sgd, communicator));
//   ... CADRE_RETURN_IF_ERROR(optimizer->BackwardAndUpdate(loss(net->forward(x), y)));
#ifndef CADRE_TORCH_DISTRIBUTED_OPTIMIZER_H_
#define CADRE_TORCH_DISTRIBUTED_OPTIMIZER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/hooks/fusion.h"
#include "cadre/hooks/partial.h"
#include "cadre/hooks/sparse.h"
#include "cadre/parameter.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/tensors.h"
#include "torch/optim/optimizer.h"
#include "torch/types.h"

namespace cadre::nn {

class DeviceAverage;
class DeviceLinks;
class ShardedGradScaler;

// Used by one thread. Optimizer and communicator must outlive it. All ranks make the same calls
// with the same arguments, except for the loss. Each call clears the gradients first; a parameter
// that the loss does not use counts with a gradient of zero. `threshold` is in elements: larger
// parameters are sent alone, the others together. After an error the communicator is aborted and
// every later call returns that error.
class DistributedOptimizer {
 public:
  // Collective: compares the parameters of all groups with rank 0's, and copies rank 0's values.
  // Parameters that require no gradient at this time are not exchanged later, and get none. If
  // parameters are added, removed, frozen or unfrozen later, the next call fails with
  // FAILED_PRECONDITION, giving their index in the optimizer. Gradients on connected devices are
  // averaged there; they go through host memory in the sparse and the partial mode, and if
  // `connect_device` is null or fails.
  static Result<std::unique_ptr<DistributedOptimizer>> Create(
      torch::optim::Optimizer& optimizer, Communicator& communicator,
      std::chrono::nanoseconds timeout = std::chrono::minutes(11),
      const ConnectDevice& connect_device = ConnectByNccl);
  ~DistributedOptimizer();

  // From now on each update scales its loss, and is left out if some rank's gradient overflowed.
  // That is decided before the exchange, so that a mode's state and clipping see unscaled
  // gradients. The scaler's calls are made here; it must use the same communicator, and outlive
  // this. Null: stop using it.
  void UseScaler(ShardedGradScaler* scaler) { scaler_ = scaler; }

  // SINGA's backward_and_update: the average of all gradients.
  Status BackwardAndUpdate(const torch::Tensor& loss, size_t threshold = hooks::kFusionThreshold);

  // SINGA's backward_and_update_half: the same in 16 bits; with `clipping` every element is first
  // clamped to +- clip_value. Unlike SINGA's, it divides before it sums, so that the sum does not
  // overflow.
  Status BackwardAndUpdateHalf(const torch::Tensor& loss,
                               size_t threshold = hooks::kFusionThreshold, bool clipping = false,
                               double clip_value = 100);

  // SINGA's backward_and_partial_update: every rank updates with its own gradients, then the next
  // group of parameters becomes the average. Replicas differ; see AverageParameters(). On an error
  // the optimizer may have stepped already: only the average has failed.
  Status BackwardAndPartialUpdate(const torch::Tensor& loss,
                                  size_t threshold = hooks::kFusionThreshold);

  // SINGA's backward_and_sparse_update: with `top_k` sends the largest fraction `sparsity` of each
  // group's elements, else all elements of at least that magnitude; with `correct` the rest is
  // added to the next step's gradients.
  Status BackwardAndSparseUpdate(const torch::Tensor& loss,
                                 size_t threshold = hooks::kFusionThreshold, double sparsity = 0.05,
                                 bool top_k = false, bool correct = true);

  // Collective: all parameters become the average. Call it after partial updates, before an
  // evaluation or a checkpoint.
  Status AverageParameters();

  // This rank's state between steps, for its part of a checkpoint: the residual of the sparse mode,
  // and the next group of the partial one. Empty for a mode that was not used.
  struct State {
    std::string sparse;
    std::string partial;
  };
  Result<State> SaveState() const;
  // Call before the first step.
  Status LoadState(const State& state);

  // Bytes that this rank gave to collectives so far.
  uint64_t bytes_given() const;

 private:
  // A way to reduce gradients, with its buffers.
  struct Exchange {
    std::string mode;
    size_t threshold = 0;
    std::vector<torch::Tensor> fused;
    std::vector<std::vector<GradientView>> gradients;
    std::vector<BucketView> buckets;
    std::vector<std::unique_ptr<DeviceAverage>> on_devices;
    // The last member, so that its thread has ended when the memory is freed.
    std::shared_ptr<CommunicationHook> hook;
  };

  DistributedOptimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                       std::chrono::nanoseconds timeout);

  // A parameter of the optimizer, in its order.
  struct Place {
    torch::Tensor tensor;
    bool trained = false;
  };

  Status AddPlace(const torch::Tensor& tensor, NamedTensors* all);
  Status CheckUnchanged() const;
  // If it sets `overflowed`, the update must be left out.
  Status Backward(const torch::Tensor& loss, bool* overflowed);
  Status StepOptimizer();
  Status LayOut(Exchange& exchange, size_t threshold);
  void LayOutDevices(Exchange& exchange, size_t threshold);
  // The groups of the parameters that `hook` leaves to the devices, or of the others, in sending
  // order.
  std::vector<std::vector<size_t>> Groups(const CommunicationHook& hook, bool on_devices,
                                          size_t threshold) const;
  Status Reduce(Exchange& exchange, size_t threshold);
  Status ReduceOnHost(Exchange& exchange, std::chrono::steady_clock::time_point deadline);
  Status Update(const torch::Tensor& loss, Exchange& exchange, size_t threshold);
  Status PreparePartial(size_t threshold);
  Status OnHost(const std::function<Status()>& average);
  Status Fail(const Status& status);

  torch::optim::Optimizer& optimizer_;
  Communicator& communicator_;
  const std::chrono::nanoseconds timeout_;
  std::vector<Place> places_;
  // Those that require a gradient.
  NamedTensors trained_;
  std::unique_ptr<DeviceLinks> links_;
  ShardedGradScaler* scaler_ = nullptr;

  Exchange full_, half_, sparse_;
  double half_limit_ = 0;
  std::shared_ptr<hooks::SparseHook> sparse_hook_;
  std::shared_ptr<hooks::PartialHook> partial_;
  size_t partial_threshold_ = 0;
  // The loaded state of modes that have not been used yet.
  State loaded_;
  // Bytes of hooks that were replaced.
  uint64_t earlier_bytes_ = 0;
  // Bytes sent by devices in place of hooks.
  uint64_t device_bytes_ = 0;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DISTRIBUTED_OPTIMIZER_H_
