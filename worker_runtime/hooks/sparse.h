// Only the elements that matter travel; the rest waits in a residual until it does. SINGA's sparse
// modes.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_SPARSE_H_
#define CADRE_WORKER_RUNTIME_HOOKS_SPARSE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/communication_hook.h"
#include "worker_runtime/hooks/hook_state.h"
#include "worker_runtime/hooks/hook_thread.h"

namespace cadre::hooks {

struct SparseOptions {
  enum class Select {
    // That share of a bucket's elements, rounded up: those of the largest magnitude.
    kTopK,
    // All elements of at least that magnitude.
    kThreshold,
  };
  Select select = Select::kThreshold;
  double sparsity = 0.05;
  // Without it, what is not sent is lost.
  bool residual = true;
};

// In each step, for each bucket:
//   g += residual; s = the selected elements of g; residual = g - s as it is sent
//   g = the sum of all ranks' s, divided by the number of ranks
// Ranks exchange pairs of index and value; where these would be as many as the bucket has elements,
// the selected elements are summed densely instead. A residual that was saved is lost when its rank
// is not there after a restart, as gradients of that rank's share of the data would be.
class SparseHook : public CommunicationHook {
 public:
  explicit SparseHook(const SparseOptions& options) : options_(options) {}

  // INVALID_ARGUMENT: a share outside (0, 1], a magnitude that is not positive, or as
  // CheckFloatBuckets().
  absl::Status Layout(absl::Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  absl::StatusOr<std::string> SaveState() const override;
  absl::Status LoadState(absl::string_view state) override;
  uint64_t bytes_given() const override { return thread_.bytes_given(); }

  // For the steps that follow, on all ranks; Layout() checks it. The residual stays.
  void set_options(const SparseOptions& options) { options_ = options; }

 private:
  absl::Status Reduce(Communicator& communicator, const BucketView& bucket);
  std::vector<int32_t> Select(absl::Span<const float> values) const;
  absl::StatusOr<std::vector<size_t>> Counts(Communicator& communicator, size_t mine,
                                             size_t elements);
  absl::Status Exchange(Communicator& communicator, absl::Span<const int32_t> indices,
                        std::vector<float>& values, DataType type);

  SparseOptions options_;
  FloatsByParameter residuals_;
  HookThread thread_;
};

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_SPARSE_H_
