// Connects libtorch's autograd with a Reducer: what DataParallel is made of. Parameters on the host
// in float32 or float64 have their gradients in the reducer's own buckets; all others, on devices
// or with 16 bits, go by RoutedGradients: on connected devices they are reduced there, in their own
// type, and else on the host in float32 (float64).
#ifndef CADRE_TORCH_GRADIENT_HOOKS_H_
#define CADRE_TORCH_GRADIENT_HOOKS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/reducer.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_links.h"
#include "cadre/torch/routed_gradients.h"
#include "cadre/torch/tensors.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

struct DataParallelOptions {
  ReducerOptions reducer;
  // Rank 0's buffers (running averages of batch normalization and the like) replace those of the
  // other ranks before each synchronized forward pass, and at construction.
  bool broadcast_buffers = true;
  // For the exchange at the end of each backward pass, and of buffers; as ReducerOptions::timeout.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
  // How the ranks' devices are connected, so that gradients there are reduced without the host;
  // null: not at all. With a hook that has no plain_average(), gradients go through the host.
  ConnectDevice connect_device = ConnectByNccl;
};

// One thread at a time, except for what autograd calls itself. Nothing here throws into autograd:
// what goes wrong is returned by the next Finish().
class GradientHooks {
 public:
  using OwnerOf = std::function<int(const torch::Tensor&)>;

  // Collective; errors as Reducer::Create(). INVALID_ARGUMENT: the module is null, or a timeout is
  // not more than zero. With `owner_of` each gradient goes to one rank alone;
  // INVALID_ARGUMENT, naming the parameter: it has no owner (-1).
  static Result<std::unique_ptr<GradientHooks>> Create(std::shared_ptr<torch::nn::Module> module,
                                                       Communicator& communicator,
                                                       DataParallelOptions options,
                                                       const OwnerOf& owner_of = nullptr);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Before a forward pass. Does nothing in evaluation mode and where gradients are off, so that one
  // rank may evaluate alone.
  void BeforeForward();
  // After backward(): what it came to.
  Result<StepReport> Finish();
  // In place of forward(), backward() and Finish(), for a rank that has no more samples. What
  // passes inside NoSync have added up since the last step counts, with the weight that is set.
  Result<StepReport> StepWithoutData();
  // Forgets the gradients.
  void ZeroGrad();
  // FAILED_PRECONDITION: no gradients were reduced since the last call.
  Status BeforeOptimizerStep();
  // Of the step that the next forward pass begins, and of those after it.
  void set_weight(double weight) { weight_ = weight; }
  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronize() const { return synchronize_; }
  const Reducer& reducer() const { return *reducer_; }
  Communicator& communicator() { return communicator_; }

 private:
  class ReadyHook;
  // A pointer of libtorch's own kind: std::shared_ptr until 2.10 or so, then c10's.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

  GradientHooks(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                DataParallelOptions options);

  static Status CheckArguments(const torch::nn::Module* module, const DataParallelOptions& options);
  // Those whose memory is the tensor's own.
  std::vector<Parameter> OwnParameters() const;
  // Decides where the gradients are reduced.
  Result<std::unique_ptr<DeviceLinks>> ConnectDevices();
  void Install();
  enum class Step { kNone, kLocal, kSynchronized };

  Status Prepare(double weight);
  Status CheckHooksAlive() const;
  Status AssignOwners(const OwnerOf& owner_of);
  Status CheckNotBypassed();
  Status CheckMayStepWithoutData(bool accumulated) const;
  bool HasAccumulated() const;
  bool ComparesParameters() const;
  Status PointAtBuckets();
  Status MarkReady(size_t i);
  void OnReady(size_t i);
  void Take(size_t i);
  void OnBackwardEnd();
  void FillMissing();
  void FinishSynchronized();
  void FinishPending();
  void PublishUsed(const StepReport& report);
  bool LivesInBucket(size_t i) const;
  // Lets nobody wait for this rank any more.
  void Abort();
  void Record(Status status);

  const std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  const DataParallelOptions options_;
  // Its parameters are the reducer's, too.
  NamedTensors trained_;
  // The others, by their names.
  std::vector<std::pair<std::string, torch::Tensor>> frozen_;
  // The rank that each gradient goes to; empty: to all.
  std::vector<int> owners_;
  std::unique_ptr<Reducer> reducer_;
  // Of tensors on devices, or with 16 bits.
  std::unique_ptr<RoutedGradients> routed_;
  // Where the parameters lay when the hooks were installed.
  std::vector<const void*> storages_;
  // Gradient i as a tensor over its place in the reducer's bucket, or in that of routed_.
  std::vector<torch::Tensor> views_;
  uint64_t layout_ = 0;
  // Kept alive here, because autograd itself keeps only weak references; with the key of our hook.
  std::vector<std::pair<NodePointer, uintptr_t>> accumulators_;

  bool synchronize_ = true;
  double weight_ = 1;
  // The step that the last forward pass began.
  Step step_ = Step::kNone;
  // Whether gradients are on their way of which Finish() has not heard yet.
  bool finish_pending_ = false;
  // Whether the gradients of the last step are still there, with owners.
  bool owned_gradients_ = false;
  // Whether gradients were computed since the last reduction, without one.
  bool only_local_ = false;
  // Of the first elements of all parameters, before the last forward pass.
  uint64_t sample_ = 0;
  int64_t optimized_steps_ = 0;
  std::atomic<bool> end_queued_{false};

  std::mutex mutex_;
  // Of the mutex.
  Status failure_;
  std::optional<StepReport> report_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_GRADIENT_HOOKS_H_
