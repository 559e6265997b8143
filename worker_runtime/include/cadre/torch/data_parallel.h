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
// Save and load module() itself: names carry no prefix. Loading, like to(), gives parameters other
// storage, and comes before Create().
#ifndef CADRE_TORCH_DATA_PARALLEL_H_
#define CADRE_TORCH_DATA_PARALLEL_H_

#include <chrono>
#include <memory>
#include <utility>

#include "cadre/result.h"
#include "cadre/status_macros.h"
#include "cadre/torch/gradient_hooks.h"
#include "cadre/torch/tensors.h"

namespace cadre::nn {

// One thread. The communicator must outlive it, and nobody else may use the communicator between
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

  // After backward() and before the optimizer's step. On an error the gradients are not averaged
  // and must not be used; every later call returns the same error. With report.skipped the
  // optimizer must not step, on any rank.
  Result<StepReport> Finish() { return hooks_->Finish(); }

  // How much the gradients of the next step, and of those after it, count: the number of samples of
  // this rank, where the loss is their mean and ranks have different numbers. 1 unless set.
  void set_weight(double weight) { hooks_->set_weight(weight); }
  // A step of a rank that has no more samples while others still do: in place of forward(),
  // backward() and Finish(). When report.weight is 0, no rank had any. What it has from passes
  // inside NoSync since the last step counts, with the weight that is set; FAILED_PRECONDITION with
  // static_graph.
  Result<StepReport> StepWithoutData() { return hooks_->StepWithoutData(); }

  // As the optimizer's zero_grad(), but the next backward pass need not add to zeros.
  void ZeroGrad() { hooks_->ZeroGrad(); }
  // Just before the optimizer's step. FAILED_PRECONDITION: its gradients are not those of all
  // ranks, because nothing was reduced since the last call.
  Status BeforeOptimizerStep() { return hooks_->BeforeOptimizerStep(); }

  // Collective: a hash of the model's state when it is bitwise equal on all ranks.
  Result<uint64_t> CheckParametersEqual(std::chrono::nanoseconds timeout) {
    return CheckEqualState(hooks_->communicator(), *module_, timeout);
  }

  Module& module() { return *module_; }
  const Reducer& reducer() const { return hooks_->reducer(); }

  // While it lives, gradients only accumulate locally: for all but the last of several backward
  // passes before one step. The forward pass must be inside.
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
