// The plain average of all ranks' gradients, which is also what the wrapping hooks wrap by default.
#ifndef CADRE_HOOKS_ALL_REDUCE_H_
#define CADRE_HOOKS_ALL_REDUCE_H_

#include <memory>
#include <optional>
#include <string>

#include "cadre/communication_hook.h"

namespace cadre::hooks {

class HookThread;

// Divides by the number of ranks, then sums, in the bucket's type, so that a sum cannot overflow if
// the average does not.
class AllReduceHook : public CommunicationHook {
 public:
  AllReduceHook();
  ~AllReduceHook() override;

  Status Layout(Span<const BucketView>) override { return OkStatus(); }
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override;
  Status LoadState(std::string_view state) override;
  uint64_t bytes_given() const override;
  std::optional<PlainAverage> plain_average() const override { return PlainAverage(); }
  std::string DescribeOptions() const override { return "the average"; }

 private:
  // The last member, so that its thread stops before the memory that its operations use is freed.
  const std::unique_ptr<HookThread> thread_;
};

// Clamps every element of this rank's gradients to [-limit, limit] before `inner` reduces them. NaN
// is kept.
class ClippingHook : public CommunicationHook {
 public:
  // A null `inner` is the plain average.
  ClippingHook(double limit, std::shared_ptr<CommunicationHook> inner);

  // INVALID_ARGUMENT: the limit is not positive, or an error of CheckFloatBuckets().
  Status Layout(Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override { return inner_->SaveState(); }
  Status LoadState(std::string_view state) override { return inner_->LoadState(state); }
  bool KeepsReplicasEqual() const override { return inner_->KeepsReplicasEqual(); }
  uint64_t bytes_given() const override { return inner_->bytes_given(); }
  std::optional<PlainAverage> plain_average() const override;
  std::string DescribeOptions() const override;

 private:
  const double limit_;
  const std::shared_ptr<CommunicationHook> inner_;
};

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_ALL_REDUCE_H_
