// SINGA's partial mode: every rank updates its parameters with its own gradients, and after each
// step the next group of parameters is averaged over the ranks, in turn.
//
//   auto partial = PartialHook::Create(parameters, {});
//   options.reducer.hook = *partial;             // leaves gradients as they are
//   ...
//   optimizer.step();
//   CADRE_RETURN_IF_ERROR((*partial)->AverageNextGroup(communicator, timeout));
#ifndef CADRE_HOOKS_PARTIAL_H_
#define CADRE_HOOKS_PARTIAL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/hooks/fusion.h"
#include "cadre/parameter.h"

namespace cadre::hooks {

// Used by one thread at a time. Replicas differ between steps. The parameters' memory must not
// move.
class PartialHook : public CommunicationHook {
 public:
  // The groups are FusionGroups() of the parameters in reverse order, each of one type.
  // INVALID_ARGUMENT: there are no parameters, or one has no floating point type.
  static Result<std::shared_ptr<PartialHook>> Create(std::vector<Parameter> parameters,
                                                     size_t threshold = kFusionThreshold);

  size_t group_count() const { return groups_.size(); }

  // Collective, after the optimizer's step t = 1, 2, ...: group (t - 1) mod K of K becomes the
  // average. After K steps all replicas would be equal if nothing else changed them.
  Status AverageNextGroup(Communicator& communicator, std::chrono::nanoseconds timeout);
  // Collective: averages all groups, without changing which group is next. Call it before a
  // checkpoint or an evaluation, so that all ranks have the same model.
  Status AverageAll(Communicator& communicator, std::chrono::nanoseconds timeout);

  Status Layout(Span<const BucketView>) override { return OkStatus(); }
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override;
  Status LoadState(std::string_view state) override;
  bool KeepsReplicasEqual() const override { return false; }
  uint64_t bytes_given() const override { return bytes_given_; }

 private:
  PartialHook(std::vector<Parameter> parameters, std::vector<std::vector<size_t>> groups)
      : parameters_(std::move(parameters)), groups_(std::move(groups)) {}

  Status Average(Communicator& communicator, const std::vector<size_t>& group,
                 std::chrono::nanoseconds timeout);

  const std::vector<Parameter> parameters_;
  const std::vector<std::vector<size_t>> groups_;
  // The group that is averaged next.
  size_t next_ = 0;
  uint64_t bytes_given_ = 0;
};

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_PARTIAL_H_
