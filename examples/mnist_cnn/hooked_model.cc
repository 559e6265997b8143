#include "hooked_model.h"

#include <utility>

#include "cadre/communication_hook.h"
#include "cadre/hooks/partial.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/tensors.h"
#include "rank_states.h"

namespace cadre::mnist {
namespace {

std::shared_ptr<CommunicationHook> Sparse(hooks::SparseOptions::Select select, double sparsity) {
  return std::make_shared<hooks::SparseHook>(
      hooks::SparseOptions{select, sparsity, /*residual=*/true});
}

class HookedModel : public Synchronization {
 public:
  explicit HookedModel(const Replica& replica) : replica_(replica) {}
  // Once, before all else.
  Status Begin(const std::string& way, double sparsity);

  torch::Tensor Forward(const torch::Tensor& images) override;
  Status Step(const torch::Tensor& loss, int64_t own, int64_t all) override;
  Status AfterStep() override;
  Status MakeReplicasEqual() override;
  Status Save(torch::serialize::OutputArchive& archive) const override;
  Status Load(int rank, torch::serialize::InputArchive& archive) override;
  SynchronizationCost cost() const override;

 private:
  Status MakeHook(const std::string& way, double sparsity);

  const Replica replica_;
  // Null for fp32.
  std::shared_ptr<CommunicationHook> hook_;
  // The same hook, if it is that one, and the parameters that it averages.
  std::shared_ptr<hooks::PartialHook> partial_;
  nn::NamedTensors trained_;
  std::unique_ptr<nn::DataParallel<Net>> model_;
  // Of the reducer's steps.
  uint64_t step_bytes_ = 0;
  SynchronizationCost::Times times_;
};

Status HookedModel::Begin(const std::string& way, double sparsity) {
  CADRE_RETURN_IF_ERROR(MakeHook(way, sparsity));
  nn::DataParallelOptions options;
  options.timeout = options.reducer.timeout = replica_.timeout;
  options.reducer.hook = hook_;
  CADRE_ASSIGN_OR_RETURN(
      model_, nn::DataParallel<Net>::Create(replica_.net, replica_.communicator, options));
  model_->ZeroGrad();
  return OkStatus();
}

Status HookedModel::MakeHook(const std::string& way, double sparsity) {
  if (way == "fp16") {
    hook_ = hooks::Fp16Hook();
  } else if (way == "bf16") {
    hook_ = hooks::Bf16Hook();
  } else if (way == "topk") {
    hook_ = Sparse(hooks::SparseOptions::Select::kTopK, sparsity);
  } else if (way == "threshold") {
    hook_ = Sparse(hooks::SparseOptions::Select::kThreshold, sparsity);
  } else if (way == "partial") {
    CADRE_ASSIGN_OR_RETURN(trained_, nn::TrainedParameters(*replica_.net));
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
  replica_.optimizer.zero_grad();
  return model_->forward(images);
}

// The ranks' gradients count by their samples.
Status HookedModel::Step(const torch::Tensor& loss, int64_t own, int64_t all) {
  StepReport report;
  if (own == 0) {
    CADRE_ASSIGN_OR_RETURN(report, model_->StepWithoutData());
  } else {
    model_->set_weight(static_cast<double>(own * replica_.communicator.size()) /
                       static_cast<double>(all));
    loss.backward();
    CADRE_ASSIGN_OR_RETURN(report, model_->Finish());
  }
  CADRE_RETURN_IF_ERROR(model_->BeforeOptimizerStep());
  replica_.optimizer.step();
  step_bytes_ += report.bytes;
  times_.communication += report.communication;
  times_.exposed_wait += report.exposed_wait;
  return OkStatus();
}

// The hook averages what lies on the host.
Status HookedModel::AfterStep() {
  if (partial_ == nullptr) return OkStatus();
  trained_.CopyToHost();
  CADRE_RETURN_IF_ERROR(partial_->AverageNextGroup(replica_.communicator, replica_.timeout));
  trained_.CopyFromHost();
  return OkStatus();
}

Status HookedModel::MakeReplicasEqual() {
  if (partial_ == nullptr) return OkStatus();
  trained_.CopyToHost();
  CADRE_RETURN_IF_ERROR(partial_->AverageAll(replica_.communicator, replica_.timeout));
  trained_.CopyFromHost();
  return OkStatus();
}

Status HookedModel::Save(torch::serialize::OutputArchive& archive) const {
  if (hook_ == nullptr) return OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::string state, hook_->SaveState());
  return SaveRankStates(replica_.communicator, state, archive, replica_.timeout);
}

Status HookedModel::Load(int rank, torch::serialize::InputArchive& archive) {
  if (hook_ == nullptr) return OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::string state, LoadRankState(rank, archive));
  return state.empty() ? OkStatus() : hook_->LoadState(state);
}

SynchronizationCost HookedModel::cost() const {
  const uint64_t partial_bytes = partial_ != nullptr ? partial_->bytes_given() : 0;
  return {step_bytes_ + partial_bytes, times_};
}

}  // namespace

Result<std::unique_ptr<Synchronization>> MakeHookedModel(const std::string& way, double sparsity,
                                                         const Replica& replica) {
  auto model = std::make_unique<HookedModel>(replica);
  CADRE_RETURN_IF_ERROR(model->Begin(way, sparsity));
  return model;
}

}  // namespace cadre::mnist
