#include "synchronization.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cadre/communication_hook.h"
#include "cadre/hooks/partial.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/distributed_optimizer.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "hooked_model.h"
#include "rank_states.h"
#include "torch/types.h"
#include "wrapped_optimizer.h"

namespace cadre::mnist {
namespace {

std::shared_ptr<CommunicationHook> Sparse(hooks::SparseOptions::Select select, double sparsity) {
  return std::make_shared<hooks::SparseHook>(
      hooks::SparseOptions{select, sparsity, /*residual=*/true});
}

class HookedModel : public Synchronization {
 public:
  explicit HookedModel(const Replica& replica) : replica_(replica) {}
  // Must be called once, before all else.
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
  // The hook, or null for fp32.
  std::shared_ptr<CommunicationHook> hook_;
  // The same hook if it is a PartialHook, and the parameters that it averages.
  std::shared_ptr<hooks::PartialHook> partial_;
  nn::NamedTensors trained_;
  std::unique_ptr<nn::DataParallel<Net>> model_;
  // These add up over the reducer's steps.
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

// Each rank's gradients are weighted by its number of samples.
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

// The hook averages copies on the host.
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

namespace {

enum class DistOption { kPlain, kHalf, kPartialUpdate, kSparseTopK, kSparseThreshold };

Result<DistOption> ParseDistOption(const std::string& name) {
  if (name == "plain" || name == "fp32") return DistOption::kPlain;
  if (name == "half" || name == "fp16") return DistOption::kHalf;
  if (name == "partialUpdate") return DistOption::kPartialUpdate;
  if (name == "sparseTopK") return DistOption::kSparseTopK;
  if (name == "sparseThreshold") return DistOption::kSparseThreshold;
  return InvalidArgumentError(
      "--dist_option " + name +
      ": expected plain, half, partialUpdate, sparseTopK or sparseThreshold");
}

class WrappedOptimizer : public Synchronization {
 public:
  WrappedOptimizer(DistOption option, double sparsity, const Replica& replica,
                   std::unique_ptr<nn::DistributedOptimizer> optimizer)
      : option_(option), sparsity_(sparsity), replica_(replica), optimizer_(std::move(optimizer)) {}

  torch::Tensor Forward(const torch::Tensor& images) override {
    return replica_.net->forward(images);
  }
  Status Step(const torch::Tensor& loss, int64_t own, int64_t all) override;
  Status AfterStep() override { return average_; }
  Status MakeReplicasEqual() override;
  Status Save(torch::serialize::OutputArchive& archive) const override;
  Status Load(int rank, torch::serialize::InputArchive& archive) override;
  SynchronizationCost cost() const override;

 private:
  Status BackwardAndUpdate(const torch::Tensor& loss);

  const DistOption option_;
  const double sparsity_;
  const Replica replica_;
  const std::unique_ptr<nn::DistributedOptimizer> optimizer_;
  // The result of the last partial update.
  Status average_;
};

// The optimizer averages over the ranks, so a rank's loss is scaled to its share of the samples:
// the average is then that over all samples. A rank without samples contributes zeroes.
Status WrappedOptimizer::Step(const torch::Tensor& loss, int64_t own, int64_t all) {
  if (own == 0) return BackwardAndUpdate(replica_.net->fc2->bias.sum() * 0);
  // Only an average of gradients needs the scaling.
  if (option_ == DistOption::kPartialUpdate) return BackwardAndUpdate(loss);
  const double part =
      static_cast<double>(own * replica_.communicator.size()) / static_cast<double>(all);
  return BackwardAndUpdate(part == 1 ? loss : loss * part);
}

Status WrappedOptimizer::BackwardAndUpdate(const torch::Tensor& loss) {
  switch (option_) {
    case DistOption::kPlain:
      return optimizer_->BackwardAndUpdate(loss);
    case DistOption::kHalf:
      return optimizer_->BackwardAndUpdateHalf(loss);
    case DistOption::kPartialUpdate:
      // The loss of another rank shows in the average, after the optimizer's own step, which then
      // counts. All other errors end this process.
      average_ = optimizer_->BackwardAndPartialUpdate(loss, kPartialThreshold);
      return OkStatus();
    case DistOption::kSparseTopK:
    case DistOption::kSparseThreshold:
      return optimizer_->BackwardAndSparseUpdate(loss, hooks::kFusionThreshold, sparsity_,
                                                 option_ == DistOption::kSparseTopK);
  }
  return InternalError("no such way");
}

Status WrappedOptimizer::MakeReplicasEqual() {
  return option_ == DistOption::kPartialUpdate ? optimizer_->AverageParameters() : OkStatus();
}

// At most one of the two texts is not empty.
Status WrappedOptimizer::Save(torch::serialize::OutputArchive& archive) const {
  CADRE_ASSIGN_OR_RETURN(const nn::DistributedOptimizer::State state, optimizer_->SaveState());
  return SaveRankStates(replica_.communicator, state.sparse + state.partial, archive,
                        replica_.timeout);
}

Status WrappedOptimizer::Load(int rank, torch::serialize::InputArchive& archive) {
  CADRE_ASSIGN_OR_RETURN(std::string mine, LoadRankState(rank, archive));
  nn::DistributedOptimizer::State state;
  if (option_ == DistOption::kPartialUpdate) {
    state.partial = std::move(mine);
  } else if (option_ == DistOption::kSparseTopK || option_ == DistOption::kSparseThreshold) {
    state.sparse = std::move(mine);
  }
  return optimizer_->LoadState(state);
}

SynchronizationCost WrappedOptimizer::cost() const {
  return {optimizer_->bytes_given(), std::nullopt};
}

}  // namespace

Result<std::unique_ptr<Synchronization>> MakeWrappedOptimizer(const std::string& option,
                                                              double sparsity,
                                                              const Replica& replica) {
  CADRE_ASSIGN_OR_RETURN(const DistOption parsed, ParseDistOption(option));
  CADRE_ASSIGN_OR_RETURN(
      auto optimizer,
      nn::DistributedOptimizer::Create(replica.optimizer, replica.communicator, replica.timeout));
  return std::make_unique<WrappedOptimizer>(parsed, sparsity, replica, std::move(optimizer));
}

namespace {

constexpr char kSizesKey[] = "synchronization_sizes";
constexpr char kStatesKey[] = "synchronization_states";

// Row r of the result is rank r's.
Result<torch::Tensor> Gather(Communicator& communicator, const torch::Tensor& mine,
                             std::chrono::nanoseconds timeout) {
  const torch::Tensor all = torch::zeros({communicator.size(), mine.numel()}, mine.scalar_type());
  CADRE_RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({mine.data_ptr(), mine.nbytes(), DataType::kUint8},
                                         {all.data_ptr(), all.nbytes(), DataType::kUint8}),
                  timeout));
  return all;
}

}  // namespace

Status SaveRankStates(Communicator& communicator, const std::string& mine,
                      torch::serialize::OutputArchive& archive, std::chrono::nanoseconds timeout) {
  const torch::Tensor size = torch::full({1}, static_cast<int64_t>(mine.size()), torch::kInt64);
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor sizes, Gather(communicator, size, timeout));
  const torch::Tensor padded = torch::zeros({sizes.max().item<int64_t>()}, torch::kUInt8);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor states, Gather(communicator, padded, timeout));
  archive.write(kSizesKey, sizes);
  archive.write(kStatesKey, states);
  return OkStatus();
}

Result<std::string> LoadRankState(int rank, torch::serialize::InputArchive& archive) {
  torch::Tensor sizes, states;
  if (!archive.try_read(kSizesKey, sizes)) return std::string();
  archive.read(kStatesKey, states);
  if (rank >= sizes.size(0)) return std::string();
  const torch::Tensor mine = states[rank].cpu().contiguous();
  const auto size = std::min<int64_t>(sizes[rank].item<int64_t>(), mine.numel());
  return std::string(static_cast<const char*>(mine.data_ptr()), static_cast<size_t>(size));
}

}  // namespace cadre::mnist
