// Sends only the significant elements; the rest is kept in a residual and added to later steps.
// These are SINGA's sparse modes.
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
    // The fraction `sparsity` of a bucket's elements with the largest magnitude, rounded up.
    kTopK,
    // All elements whose magnitude is at least `sparsity`.
    kThreshold,
  };
  Select select = Select::kThreshold;
  double sparsity = 0.05;
  // Whether unsent elements are kept for the next step; otherwise they are lost.
  bool residual = true;
};

// In each step, for each bucket:
//   g += residual; s = the selected elements of g; residual = g - s, with s as it is sent
//   g = the sum of all ranks' s, divided by the number of ranks
// Ranks exchange pairs of index and value; if there were as many pairs as the bucket has elements,
// the selected elements are summed densely instead. If a rank does not exist after a restart, its
// saved residual is lost, as the gradients of that rank's share of the data would be.
class SparseHook : public CommunicationHook {
 public:
  explicit SparseHook(const SparseOptions& options);
  ~SparseHook() override;

  // INVALID_ARGUMENT: a fraction outside (0, 1], a magnitude that is not positive, or an error of
  // CheckFloatBuckets().
  Status Layout(Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override;
  Status LoadState(std::string_view state) override;
  uint64_t bytes_given() const override;
  std::string DescribeOptions() const override;

  // Sets the options of the following steps, on all ranks alike; Layout() checks them. The residual
  // is kept.
  void set_options(const SparseOptions& options) { options_ = options; }

 private:
  Status Reduce(Communicator& communicator, const BucketView& bucket);
  std::vector<int32_t> Select(Span<const float> values) const;
  Result<std::vector<size_t>> Counts(Communicator& communicator, size_t mine, size_t elements);
  Status Exchange(Communicator& communicator, Span<const int32_t> indices,
                  std::vector<float>& values, DataType type);

  SparseOptions options_;
  std::map<size_t, std::vector<float>> residuals_;
  // The last member, so that its thread stops before the memory that its operations use is freed.
  const std::unique_ptr<HookThread> thread_;
};

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_SPARSE_H_
