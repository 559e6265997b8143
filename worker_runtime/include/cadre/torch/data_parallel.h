// PyTorch's DistributedDataParallel for a libtorch module: each rank, a process, computes on its
// own samples, and after backward() every gradient is the average over all ranks.
// (torch.nn.DataParallel, one process with several devices, is ScatterParallel.)
//
//   CADRE_ASSIGN_OR_RETURN(
//       auto model, cadre::nn::DataParallel<NetImpl>::Create(net.ptr(), communicator));
//   optimizer.zero_grad();
//   loss(model->forward(images), labels).backward();
//   CADRE_RETURN_IF_ERROR(model->Finish().status());
//   optimizer.step();
//
// Save and load module() itself: names have no prefix. Loading, like to(), gives parameters other
// storage, so do it before Create().
#ifndef CADRE_TORCH_DATA_PARALLEL_H_
#define CADRE_TORCH_DATA_PARALLEL_H_

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
#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/tensors.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

class DeviceLinks;
class RoutedGradients;

struct DataParallelOptions {
  ReducerOptions reducer;
  // Rank 0's buffers (running averages of batch normalization and the like) replace those of the
  // other ranks before each synchronized forward pass, and at construction.
  bool broadcast_buffers = true;
  // Limits the exchange at the end of each backward pass, and that of buffers; like
  // ReducerOptions::timeout.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
  // Connects the ranks' devices, so that gradients there are reduced without the host; null: not at
  // all. With a hook that has no plain_average(), gradients go through the host.
  ConnectDevice connect_device = ConnectByNccl;
};

// The core of DataParallel, for its own code: connects libtorch's autograd with a Reducer.
// Gradients of float32 or float64 parameters on the host are in the reducer's own buckets; all
// others, on devices or with 16 bits, go through RoutedGradients: on connected devices they are
// reduced there, in their own type, and otherwise on the host in float32 (float64).
//
// Used by one thread at a time, except for calls from autograd. Nothing here throws into autograd:
// errors are returned by the next Finish().
class GradientHooks {
 public:
  using OwnerOf = std::function<int(const torch::Tensor&)>;

  // Collective; errors as Reducer::Create(). INVALID_ARGUMENT: the module is null, or a timeout is
  // not positive. With `owner_of` each gradient goes to one rank only; INVALID_ARGUMENT, naming the
  // parameter: it has no owner (-1).
  static Result<std::unique_ptr<GradientHooks>> Create(std::shared_ptr<torch::nn::Module> module,
                                                       Communicator& communicator,
                                                       DataParallelOptions options,
                                                       const OwnerOf& owner_of = nullptr);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Call before a forward pass. Does nothing in evaluation mode and if gradients are off, so that
  // one rank may evaluate alone.
  void BeforeForward();
  // Call after backward(); returns the outcome of the step.
  Result<StepReport> Finish();
  // Call in place of forward(), backward() and Finish() on a rank that has no more samples.
  // Gradients accumulated inside NoSync since the last step count, with the weight that is set.
  Result<StepReport> StepWithoutData();
  // Clears the gradients.
  void ZeroGrad();
  // FAILED_PRECONDITION: no gradients were reduced since the last call.
  Status BeforeOptimizerStep();
  // Applies to the step that the next forward pass begins, and to later ones.
  void set_weight(double weight) { weight_ = weight; }
  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronize() const { return synchronize_; }
  const Reducer& reducer() const { return *reducer_; }
  Communicator& communicator() { return communicator_; }

 private:
  class ReadyHook;
  // libtorch's pointer type: std::shared_ptr until about 2.10, then c10's.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

  GradientHooks(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                DataParallelOptions options);

  static Status CheckArguments(const torch::nn::Module* module, const DataParallelOptions& options);
  // The parameters whose memory is the tensor's own.
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
  // Aborts the communicators, so that no rank waits for this one.
  void Abort();
  void Record(Status status);

  const std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  const DataParallelOptions options_;
  // The trained parameters, which are also the reducer's.
  NamedTensors trained_;
  // The other parameters, with their names.
  std::vector<std::pair<std::string, torch::Tensor>> frozen_;
  // The rank that each gradient goes to; empty: all ranks.
  std::vector<int> owners_;
  std::unique_ptr<Reducer> reducer_;
  // Gradients on devices, or with 16 bits.
  std::unique_ptr<RoutedGradients> routed_;
  // The parameters' storage when the hooks were installed.
  std::vector<const void*> storages_;
  // Gradient i as a tensor over its place in the reducer's bucket, or in the bucket of routed_.
  std::vector<torch::Tensor> views_;
  uint64_t layout_ = 0;
  // Kept alive here, because autograd itself keeps only weak references; each with the key of our
  // hook.
  std::vector<std::pair<NodePointer, uintptr_t>> accumulators_;

  bool synchronize_ = true;
  double weight_ = 1;
  // The step that the last forward pass began.
  Step step_ = Step::kNone;
  // Whether gradients have been sent that Finish() has not collected yet.
  bool finish_pending_ = false;
  // With owners: whether the gradients of the last step still exist.
  bool owned_gradients_ = false;
  // Whether gradients were computed, but not reduced, since the last reduction.
  bool only_local_ = false;
  // A hash of the first elements of all parameters, before the last forward pass.
  uint64_t sample_ = 0;
  int64_t optimized_steps_ = 0;
  std::atomic<bool> end_queued_{false};

  std::mutex mutex_;
  // Guarded by the mutex.
  Status failure_;
  std::optional<StepReport> report_;
};

// Used by one thread. The communicator must outlive it, and must not be used otherwise between
// forward() and Finish().
template <typename Module>
class DataParallel {
 public:
  // Collective: compares the parameters with rank 0's and copies rank 0's values to all ranks.
  static Result<std::unique_ptr<DataParallel>> Create(std::shared_ptr<Module> module,
                                                      Communicator& communicator,
                                                      DataParallelOptions options = {}) {
    CADRE_ASSIGN_OR_RETURN(auto hooks,
                           GradientHooks::Create(module, communicator, std::move(options)));
    return std::unique_ptr<DataParallel>(new DataParallel(std::move(module), std::move(hooks)));
  }

  virtual ~DataParallel() = default;

  template <typename... Args>
  auto forward(Args&&... args) {
    hooks_->BeforeForward();
    return module_->forward(std::forward<Args>(args)...);
  }

  // Call after backward() and before the optimizer's step. On an error the gradients are not
  // averaged and must not be used; every later call returns the same error. With report.skipped the
  // optimizer must not step, on any rank.
  Result<StepReport> Finish() { return hooks_->Finish(); }

  // Sets the weight of this rank's gradients in the next step and later ones: its number of
  // samples, if the loss is their mean and ranks have different numbers. The default is 1.
  void set_weight(double weight) { hooks_->set_weight(weight); }
  // A step of a rank that has no more samples while others still do: call it in place of forward(),
  // backward() and Finish(). If report.weight is 0, no rank had samples. Gradients accumulated
  // inside NoSync since the last step count, with the weight that is set. FAILED_PRECONDITION with
  // static_graph.
  Result<StepReport> StepWithoutData() { return hooks_->StepWithoutData(); }

  // Like the optimizer's zero_grad(), but the next backward pass need not add to zeros.
  void ZeroGrad() { hooks_->ZeroGrad(); }
  // Call just before the optimizer's step. FAILED_PRECONDITION: the gradients are not averages over
  // all ranks, because nothing was reduced since the last call.
  Status BeforeOptimizerStep() { return hooks_->BeforeOptimizerStep(); }

  // Collective: returns a hash of the model's state if it is bitwise equal on all ranks.
  Result<uint64_t> CheckParametersEqual(std::chrono::nanoseconds timeout) {
    return CheckEqualState(hooks_->communicator(), *module_, timeout);
  }

  Module& module() { return *module_; }
  const Reducer& reducer() const { return hooks_->reducer(); }

  // While it lives, gradients only accumulate locally; use it for all but the last of several
  // backward passes before one step. The forward pass must be inside its scope, too.
  class NoSync {
   public:
    explicit NoSync(DataParallel& model) : hooks_(*model.hooks_), before_(hooks_.synchronize()) {
      hooks_.set_synchronize(false);
    }
    ~NoSync() { hooks_.set_synchronize(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    GradientHooks& hooks_;
    const bool before_;
  };

 protected:
  DataParallel(std::shared_ptr<Module> module, std::unique_ptr<GradientHooks> hooks)
      : module_(std::move(module)), hooks_(std::move(hooks)) {}

 private:
  const std::shared_ptr<Module> module_;
  const std::unique_ptr<GradientHooks> hooks_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DATA_PARALLEL_H_
