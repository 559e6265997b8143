// Only the elements that matter travel; the rest waits in a residual until it does. SINGA's sparse
// modes.
#ifndef CADRE_HOOKS_SPARSE_H_
#define CADRE_HOOKS_SPARSE_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/communication_hook.h"

namespace cadre::hooks {

class HookThread;

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
  explicit SparseHook(const SparseOptions& options);
  ~SparseHook() override;

  // INVALID_ARGUMENT: a share outside (0, 1], a magnitude that is not positive, or as
  // CheckFloatBuckets().
  Status Layout(Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override;
  Status LoadState(std::string_view state) override;
  uint64_t bytes_given() const override;
  std::string DescribeOptions() const override;

  // For the steps that follow, on all ranks; Layout() checks it. The residual stays.
  void set_options(const SparseOptions& options) { options_ = options; }

 private:
  Status Reduce(Communicator& communicator, const BucketView& bucket);
  std::vector<int32_t> Select(Span<const float> values) const;
  Result<std::vector<size_t>> Counts(Communicator& communicator, size_t mine, size_t elements);
  Status Exchange(Communicator& communicator, Span<const int32_t> indices,
                  std::vector<float>& values, DataType type);

  SparseOptions options_;
  std::map<size_t, std::vector<float>> residuals_;
  // The last, so that it stops before what its operations use is gone.
  const std::unique_ptr<HookThread> thread_;
};

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_SPARSE_H_
