#include "wrapped_optimizer.h"

#include "cadre/status_macros.h"
#include "rank_states.h"

namespace cadre::mnist {
namespace {

// In elements. The default would make one group of this small network.
constexpr size_t kPartialThreshold = 10000;

}  // namespace

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

Result<std::unique_ptr<Synchronization>> WrappedOptimizer::Create(
    const SynchronizationOptions& options, std::shared_ptr<Net> net,
    torch::optim::Optimizer& optimizer, Communicator& communicator,
    std::chrono::nanoseconds timeout) {
  CADRE_ASSIGN_OR_RETURN(const DistOption option, ParseDistOption(options.dist_option));
  CADRE_ASSIGN_OR_RETURN(auto wrapped,
                         nn::DistributedOptimizer::Create(optimizer, communicator, timeout));
  return std::unique_ptr<Synchronization>(new WrappedOptimizer(
      option, options.sparsity, std::move(net), std::move(wrapped), communicator, timeout));
}

// The optimizer averages over the ranks, so a rank's loss is scaled to its part of the samples: the
// average is then that over all samples. A rank that has none gives zeroes.
Status WrappedOptimizer::Step(const torch::Tensor& loss, int64_t own, int64_t all) {
  if (own == 0) return BackwardAndUpdate(net_->fc2->bias.sum() * 0);
  // Only what is averaged is scaled.
  if (option_ == DistOption::kPartialUpdate) return BackwardAndUpdate(loss);
  const double part = static_cast<double>(own * communicator_.size()) / static_cast<double>(all);
  return BackwardAndUpdate(part == 1 ? loss : loss * part);
}

Status WrappedOptimizer::BackwardAndUpdate(const torch::Tensor& loss) {
  switch (option_) {
    case DistOption::kPlain:
      return optimizer_->BackwardAndUpdate(loss);
    case DistOption::kHalf:
      return optimizer_->BackwardAndUpdateHalf(loss);
    case DistOption::kPartialUpdate:
      return optimizer_->BackwardAndPartialUpdate(loss, kPartialThreshold);
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

// One of the two is empty.
Status WrappedOptimizer::Save(torch::serialize::OutputArchive& archive) const {
  CADRE_ASSIGN_OR_RETURN(const nn::DistributedOptimizer::State state, optimizer_->SaveState());
  return SaveRankStates(communicator_, state.sparse + state.partial, archive, timeout_);
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
  SynchronizationCost cost;
  cost.bytes = optimizer_->bytes_given();
  return cost;
}

}  // namespace cadre::mnist
