#include "wrapped_optimizer.h"

#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/distributed_optimizer.h"
#include "rank_states.h"

namespace cadre::mnist {
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
  // What became of the last partial update.
  Status average_;
};

// The optimizer averages over the ranks, so a rank's loss is scaled to its part of the samples: the
// average is then that over all samples. A rank that has none gives zeroes.
Status WrappedOptimizer::Step(const torch::Tensor& loss, int64_t own, int64_t all) {
  if (own == 0) return BackwardAndUpdate(replica_.net->fc2->bias.sum() * 0);
  // Only what is averaged is scaled.
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
      // Other ranks' ends come to light in the average, behind the optimizer's own step, which
      // counts then. All other errors end this process.
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

// One of the two is empty.
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

}  // namespace cadre::mnist
