#include "hooked_model.h"

#include <utility>

#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/status_macros.h"
#include "rank_states.h"

namespace cadre::mnist {
namespace {

// In elements. The default would make one group of this small network.
constexpr size_t kPartialThreshold = 10000;

std::shared_ptr<CommunicationHook> Sparse(hooks::SparseOptions::Select select, double sparsity) {
  return std::make_shared<hooks::SparseHook>(
      hooks::SparseOptions{select, sparsity, /*residual=*/true});
}

}  // namespace

Result<std::unique_ptr<Synchronization>> HookedModel::Create(const SynchronizationOptions& options,
                                                             std::shared_ptr<Net> net,
                                                             torch::optim::Optimizer& optimizer,
                                                             Communicator& communicator,
                                                             std::chrono::nanoseconds timeout) {
  std::unique_ptr<HookedModel> result(new HookedModel(optimizer, communicator, timeout));
  CADRE_RETURN_IF_ERROR(result->MakeHook(options, *net));
  nn::DataParallelOptions parallel;
  parallel.timeout = parallel.reducer.timeout = timeout;
  parallel.reducer.hook = result->hook_;
  CADRE_ASSIGN_OR_RETURN(result->model_,
                         nn::DataParallel<Net>::Create(std::move(net), communicator, parallel));
  result->model_->ZeroGrad();
  return std::unique_ptr<Synchronization>(std::move(result));
}

Status HookedModel::MakeHook(const SynchronizationOptions& options, const Net& net) {
  const std::string& way = options.sync;
  if (way == "fp16") {
    hook_ = hooks::Fp16Hook();
  } else if (way == "bf16") {
    hook_ = hooks::Bf16Hook();
  } else if (way == "topk") {
    hook_ = Sparse(hooks::SparseOptions::Select::kTopK, options.sparsity);
  } else if (way == "threshold") {
    hook_ = Sparse(hooks::SparseOptions::Select::kThreshold, options.sparsity);
  } else if (way == "partial") {
    CADRE_ASSIGN_OR_RETURN(trained_, nn::TrainedParameters(net));
    CADRE_ASSIGN_OR_RETURN(partial_,
                           hooks::PartialHook::Create(trained_.parameters, kPartialThreshold));
    hook_ = partial_;
  } else if (way != "fp32") {
    return InvalidArgumentError("there is no way to synchronize called \"" + way +
                                "\"; expected fp32, fp16, bf16, partial, topk or threshold");
  }
  return OkStatus();
}

torch::Tensor HookedModel::Forward(const torch::Tensor& images) {
  optimizer_.zero_grad();
  return model_->forward(images);
}

// The ranks' gradients count by their samples.
Status HookedModel::Step(const torch::Tensor& loss, int64_t own, int64_t all) {
  StepReport report;
  if (own == 0) {
    CADRE_ASSIGN_OR_RETURN(report, model_->StepWithoutData());
  } else {
    model_->set_weight(static_cast<double>(own * communicator_.size()) / static_cast<double>(all));
    loss.backward();
    CADRE_ASSIGN_OR_RETURN(report, model_->Finish());
  }
  CADRE_RETURN_IF_ERROR(model_->BeforeOptimizerStep());
  optimizer_.step();
  steps_.bytes += report.bytes;
  steps_.communication += report.communication;
  steps_.exposed_wait += report.exposed_wait;
  return OkStatus();
}

// The hook averages what lies on the host.
Status HookedModel::AfterStep() {
  if (partial_ == nullptr) return OkStatus();
  trained_.CopyToHost();
  CADRE_RETURN_IF_ERROR(partial_->AverageNextGroup(communicator_, timeout_));
  trained_.CopyFromHost();
  return OkStatus();
}

Status HookedModel::MakeReplicasEqual() {
  if (partial_ == nullptr) return OkStatus();
  trained_.CopyToHost();
  CADRE_RETURN_IF_ERROR(partial_->AverageAll(communicator_, timeout_));
  trained_.CopyFromHost();
  return OkStatus();
}

Status HookedModel::Save(torch::serialize::OutputArchive& archive) const {
  if (hook_ == nullptr) return OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::string state, hook_->SaveState());
  return SaveRankStates(communicator_, state, archive, timeout_);
}

Status HookedModel::Load(int rank, torch::serialize::InputArchive& archive) {
  if (hook_ == nullptr) return OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::string state, LoadRankState(rank, archive));
  return state.empty() ? OkStatus() : hook_->LoadState(state);
}

SynchronizationCost HookedModel::cost() const {
  SynchronizationCost cost = steps_;
  if (partial_ != nullptr) cost.bytes += partial_->bytes_given();
  return cost;
}

}  // namespace cadre::mnist
