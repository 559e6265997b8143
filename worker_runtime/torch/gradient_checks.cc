// What GradientHooks finds wrong with how it is used.
#include <algorithm>
#include <string>
#include <vector>

#include "cadre/parameter.h"
#include "cadre/status_macros.h"
#include "cadre/torch/gradient_hooks.h"
#include "cadre/wait_or_abort.h"
#include "torch/csrc/autograd/variable.h"

namespace cadre::nn {

Status GradientHooks::CheckArguments(const torch::nn::Module* module,
                                     const DataParallelOptions& options) {
  if (module == nullptr) {
    return InvalidArgumentError("the module that is to be made data-parallel is null");
  }
  CADRE_RETURN_IF_ERROR(CheckTimeout("DataParallelOptions::timeout", options.timeout));
  return CheckTimeout("ReducerOptions::timeout", options.reducer.timeout);
}

Status GradientHooks::AssignOwners(const OwnerOf& owner_of) {
  if (options_.reducer.hook != nullptr) {
    return InvalidArgumentError(
        "a communication hook works on gradients that all ranks get, and not on those of owners");
  }
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    const int owner = owner_of(trained_.tensors[i]);
    if (owner < 0) {
      return InvalidArgumentError("rank " + std::to_string(communicator_.rank()) + ": parameter '" +
                                  trained_.parameters[i].name +
                                  "' requires a gradient, but the ShardedOptimizer does not have "
                                  "it; freeze it, or make the optimizer with it");
    }
    owners_.push_back(owner);
    trained_.parameters[i].reduced_elsewhere = true;
    trained_.parameters[i].bucket_kind = owner;
  }
  return OkStatus();
}

std::vector<Parameter> GradientHooks::OwnParameters() const {
  std::vector<Parameter> own;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    if (!trained_.copies[i].defined()) own.push_back(trained_.parameters[i]);
  }
  return own;
}

Status GradientHooks::CheckHooksAlive() const {
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(trained_.tensors[i]) ==
            accumulators_[i].first &&
        trained_.tensors[i].data_ptr() == storages_[i]) {
      continue;
    }
    return FailedPreconditionError("parameter '" + reducer_->parameters()[i].name +
                                   "' was given other storage after it was made data-parallel; "
                                   "load or convert the model before Create()");
  }
  for (const auto& [name, parameter] : frozen_) {
    if (!parameter.requires_grad()) continue;
    return FailedPreconditionError("rank " + std::to_string(communicator_.rank()) +
                                   ": parameter '" + name +
                                   "' was thawed after the model was made data-parallel, and its "
                                   "gradients are not reduced; make it data-parallel anew");
  }
  return OkStatus();
}

// An optimizer that stepped after nothing but local backward passes has let the replicas part. Its
// changes show in the first elements; autograd's version counters do not see them. On a device it
// would cost a wait in each step; there BeforeOptimizerStep() and the fingerprint find it.
Status GradientHooks::CheckNotBypassed() {
  std::vector<Parameter> firsts;
  for (const Parameter& parameter : OwnParameters()) {
    Buffer first = parameter.value;
    first.count = std::min<size_t>(first.count, 1);
    firsts.push_back({"", first, {}});
  }
  const uint64_t sample = Fingerprint(firsts);
  const bool changed = sample != sample_;
  sample_ = sample;
  if (!changed) return OkStatus();
  if (owned_gradients_ && optimized_steps_ != reducer_->finished_steps()) {
    return FailedPreconditionError(
        "rank " + std::to_string(communicator_.rank()) + ": parameters changed after step " +
        std::to_string(reducer_->finished_steps()) +
        ", but not by Step() of the ShardedOptimizer: ShardedDataParallel works with a "
        "ShardedOptimizer only");
  }
  if (!only_local_) return OkStatus();
  return FailedPreconditionError(
      "rank " + std::to_string(communicator_.rank()) + ": parameters changed after step " +
      std::to_string(reducer_->finished_steps()) +
      " although their gradients had not been reduced: run the last backward pass before the "
      "optimizer's step outside of NoSync");
}

// How often each gradient becomes ready is part of a static graph, and here there is no pass.
Status GradientHooks::CheckMayStepWithoutData(bool accumulated) const {
  if (!accumulated || !options_.reducer.static_graph) return OkStatus();
  return FailedPreconditionError(
      "rank " + std::to_string(communicator_.rank()) +
      ": StepWithoutData() after passes inside NoSync, with static_graph: run the last backward "
      "pass before each step outside of NoSync");
}

Status GradientHooks::BeforeOptimizerStep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  CADRE_RETURN_IF_ERROR(failure_);
  const int64_t finished = reducer_->finished_steps();
  if (finished == optimized_steps_) {
    return FailedPreconditionError(
        "rank " + std::to_string(communicator_.rank()) +
        ": the optimizer would step without a reduction since step " + std::to_string(finished) +
        ": call forward() of the data-parallel model, not of the module in it, and run "
        "the backward pass outside of NoSync");
  }
  optimized_steps_ = finished;
  return OkStatus();
}

}  // namespace cadre::nn
