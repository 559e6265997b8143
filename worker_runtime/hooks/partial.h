// SINGA's partial mode: every rank updates its parameters with its own gradients, and after each
// step the next group of parameters is averaged over the ranks, in turn.
//
//   auto partial = PartialHook::Create(parameters, {});
//   options.reducer.hook = *partial;             // leaves gradients as they are
//   ...
//   optimizer.step();
//   CADRE_RETURN_IF_ERROR((*partial)->AverageNextGroup(communicator, timeout));
#ifndef CADRE_WORKER_RUNTIME_HOOKS_PARTIAL_H_
#define CADRE_WORKER_RUNTIME_HOOKS_PARTIAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker_runtime/communication_hook.h"
#include "worker_runtime/hooks/fusion.h"
#include "worker_runtime/parameter.h"

namespace cadre::hooks {

// One thread at a time. Replicas differ between the steps. The parameters' memory must stay where
// it is.
class PartialHook : public CommunicationHook {
 public:
  // Groups are FusionGroups() of the parameters in the reverse of their order, each of one type.
  // INVALID_ARGUMENT: no parameters, or one that is not of a floating point type.
  static absl::StatusOr<std::shared_ptr<PartialHook>> Create(std::vector<Parameter> parameters,
                                                             size_t threshold = kFusionThreshold);

  size_t group_count() const { return groups_.size(); }

  // Collective, after the optimizer's step t = 1, 2, ...: group (t - 1) mod K of K becomes the
  // average. Once round, all replicas would be equal if nothing else changed them.
  absl::Status AverageNextGroup(Communicator& communicator, absl::Duration timeout);
  // Collective: all groups, without a change to whose turn it is. Before a checkpoint or an
  // evaluation, which then are of one model.
  absl::Status AverageAll(Communicator& communicator, absl::Duration timeout);

  absl::Status Layout(absl::Span<const BucketView>) override { return absl::OkStatus(); }
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  absl::StatusOr<std::string> SaveState() const override;
  absl::Status LoadState(absl::string_view state) override;
  bool KeepsReplicasEqual() const override { return false; }
  uint64_t bytes_given() const override { return bytes_given_; }

 private:
  PartialHook(std::vector<Parameter> parameters, std::vector<reduce::Bucket> groups)
      : parameters_(std::move(parameters)), groups_(std::move(groups)) {}

  absl::Status Average(Communicator& communicator, const reduce::Bucket& group,
                       absl::Duration timeout);

  const std::vector<Parameter> parameters_;
  const std::vector<reduce::Bucket> groups_;
  // Whose turn it is.
  size_t next_ = 0;
  uint64_t bytes_given_ = 0;
};

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_PARTIAL_H_
