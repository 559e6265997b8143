// Data-parallel training with sharded gradients (ZeRO's stage 2): like DataParallel, but during the
// backward pass each gradient is averaged only on the rank that owns its parameter, and freed
// elsewhere. After FairScale's ShardedDataParallel. It works only with a ShardedOptimizer: other
// optimizers do not find the gradients that they need.
//
//   torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
//   CADRE_ASSIGN_OR_RETURN(auto optimizer, ShardedOptimizer::Create(*net, adam, communicator));
//   CADRE_ASSIGN_OR_RETURN(auto model,
//                          ShardedDataParallel<NetImpl>::Create(net.ptr(), *optimizer));
//   loss(model->forward(images), labels).backward();
//   CADRE_RETURN_IF_ERROR(model->Finish().status());
//   CADRE_RETURN_IF_ERROR(optimizer->Step());
#ifndef CADRE_TORCH_SHARDED_DATA_PARALLEL_H_
#define CADRE_TORCH_SHARDED_DATA_PARALLEL_H_

#include <memory>
#include <utility>

#include "cadre/result.h"
#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"

namespace cadre::nn {

// Used by one thread. Uses the optimizer's communicator; the optimizer must outlive it, and has one
// model at a time. The communicator must not be used otherwise between forward() and Finish(),
// which must be called even if no step follows.
//
// Differences from DataParallel: after Finish() only the gradients of this rank's own parameters
// exist. The next forward pass clears them, so no ZeroGrad() is needed; passes accumulate only
// inside NoSync, where each rank has all gradients. Communication hooks are not supported.
template <typename Module>
class ShardedDataParallel : public DataParallel<Module> {
 public:
  // Collective: checks that the parameters have rank 0's names, types, shapes and order, and copies
  // rank 0's values to all ranks.
  //   INVALID_ARGUMENT  the ranks' parameters differ, or the optimizer lacks a parameter of the
  //                     module that requires a gradient (both name the parameter and the rank); or
  //                     options has a communication hook
  static Result<std::unique_ptr<ShardedDataParallel>> Create(std::shared_ptr<Module> module,
                                                             ShardedOptimizer& optimizer,
                                                             DataParallelOptions options = {}) {
    CADRE_ASSIGN_OR_RETURN(
        auto hooks, GradientHooks::Create(module, optimizer.communicator(), std::move(options),
                                          [&optimizer](const torch::Tensor& parameter) {
                                            return optimizer.OwnerOf(parameter);
                                          }));
    return std::unique_ptr<ShardedDataParallel>(
        new ShardedDataParallel(std::move(module), std::move(hooks), optimizer));
  }
  ~ShardedDataParallel() override { optimizer_.set_before_step(nullptr); }

  // ShardedOptimizer::Step() calls it.
  Status BeforeOptimizerStep() = delete;

 private:
  ShardedDataParallel(std::shared_ptr<Module> module, std::unique_ptr<GradientHooks> hooks,
                      ShardedOptimizer& optimizer)
      : DataParallel<Module>(std::move(module), std::move(hooks)), optimizer_(optimizer) {
    optimizer_.set_before_step([this] { return DataParallel<Module>::BeforeOptimizerStep(); });
  }

  ShardedOptimizer& optimizer_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_DATA_PARALLEL_H_
