// SINGA's DistOpt for libtorch: wraps an optimizer, and does backward pass, exchange and update in
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
#include "cadre/torch/device_average.h"
#include "cadre/torch/device_links.h"
#include "cadre/torch/tensors.h"
#include "torch/optim/optimizer.h"
#include "torch/types.h"

namespace cadre::nn {

class ShardedGradScaler;

// One thread. Optimizer and communicator must outlive it. All ranks make the same calls with the
// same arguments, but for the loss. Each call clears the gradients first; a parameter that the loss
// does not use counts with a gradient of zero. `threshold`, in elements: parameters with more
// travel alone, the others together. After an error the communicator is aborted and every later
// call returns that error.
class DistributedOptimizer {
 public:
  // Collective: compares the parameters of all groups with rank 0's, and copies rank 0's values.
  // Those that require no gradient are not exchanged later, and get none. Parameters that come,
  // go, or are frozen or thawed later are FAILED_PRECONDITION in the next call, by their number in
  // the optimizer. Gradients on devices that can be connected are averaged there; in the sparse and
  // the partial mode, and where `connect_device` is null or says that they cannot, they go through
  // the host's memory.
  static Result<std::unique_ptr<DistributedOptimizer>> Create(
      torch::optim::Optimizer& optimizer, Communicator& communicator,
      std::chrono::nanoseconds timeout = std::chrono::minutes(11),
      const ConnectDevice& connect_device = ConnectByNccl);

  // From now on each update scales its loss, and where some rank's gradient overflowed none is
  // made: before the exchange, so that what a mode remembers, and a clipping, are of gradients that
  // are not scaled. The scaler's calls are made here; it must be over the same communicator, and
  // outlive this. Null: no more.
  void UseScaler(ShardedGradScaler* scaler) { scaler_ = scaler; }

  // backward_and_update: the average of all gradients.
  Status BackwardAndUpdate(const torch::Tensor& loss, size_t threshold = hooks::kFusionThreshold);

  // backward_and_update_half: the same in 16 bits; with `clipping` every element is first cut to
  // +- clip_value. Unlike SINGA's, it divides before it sums, so that the sum does not overflow.
  Status BackwardAndUpdateHalf(const torch::Tensor& loss,
                               size_t threshold = hooks::kFusionThreshold, bool clipping = false,
                               double clip_value = 100);

  // backward_and_partial_update: every rank updates with its own gradients, then the next group of
  // parameters becomes the average. Replicas differ; see AverageParameters(). On an error the
  // optimizer may have stepped already: only the average has failed.
  Status BackwardAndPartialUpdate(const torch::Tensor& loss,
                                  size_t threshold = hooks::kFusionThreshold);

  // backward_and_sparse_update: with `top_k` the share `sparsity` of each group's elements that is
  // largest, else all elements of at least that magnitude; with `correct` the rest is added to the
  // next step's gradients.
  Status BackwardAndSparseUpdate(const torch::Tensor& loss,
                                 size_t threshold = hooks::kFusionThreshold, double sparsity = 0.05,
                                 bool top_k = false, bool correct = true);

  // Collective: all parameters become the average. After partial updates, before an evaluation or
  // a checkpoint.
  Status AverageParameters();

  // The memory of this rank between steps, for its part of a checkpoint: the residual of the
  // sparse mode, and whose turn it is in the partial one. Empty for a mode that was not used.
  struct State {
    std::string sparse;
    std::string partial;
  };
  Result<State> SaveState() const;
  // Before the first step.
  Status LoadState(const State& state);

  // Bytes that this rank gave to collectives so far.
  uint64_t bytes_given() const;

 private:
  // A way to reduce gradients, with the memory that it works in.
  struct Exchange {
    std::string mode;
    size_t threshold = 0;
    std::vector<torch::Tensor> fused;
    std::vector<std::vector<GradientView>> gradients;
    std::vector<BucketView> buckets;
    std::vector<DeviceAverage> on_devices;
    // The last, so that its thread has ended when the memory goes.
    std::shared_ptr<CommunicationHook> hook;
  };

  DistributedOptimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                       std::chrono::nanoseconds timeout)
      : optimizer_(optimizer), communicator_(communicator), timeout_(timeout) {}

  // A parameter of the optimizer, in its order.
  struct Place {
    torch::Tensor tensor;
    bool trained = false;
  };

  Status AddPlace(const torch::Tensor& tensor, NamedTensors* all);
  Status CheckUnchanged() const;
  // With `overflowed`, which it sets, nothing more is to be done.
  Status Backward(const torch::Tensor& loss, bool* overflowed);
  Status StepOptimizer();
  Status LayOut(Exchange& exchange, size_t threshold);
  void LayOutDevices(Exchange& exchange, size_t threshold);
  // Of those that `hook` leaves to the devices, or of the others, in the order in which they
  // travel.
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
  // Loaded, for a mode that has not been used yet.
  State loaded_;
  // Of hooks that were replaced.
  uint64_t earlier_bytes_ = 0;
  // Of what devices did in place of hooks.
  uint64_t device_bytes_ = 0;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DISTRIBUTED_OPTIMIZER_H_
