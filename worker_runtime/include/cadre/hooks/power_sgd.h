// PowerSGD: each gradient matrix is sent as two thin factors. After Vogels et al., "PowerSGD:
// Practical low-rank gradient compression for distributed optimization", and PyTorch's hook.
#ifndef CADRE_HOOKS_POWER_SGD_H_
#define CADRE_HOOKS_POWER_SGD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"

namespace cadre::hooks {

class HookThread;

// Names and defaults are PyTorch's.
struct PowerSgdOptions {
  int matrix_approximation_rank = 1;
  // The number of first steps that are reduced uncompressed, since gradients change too fast at the
  // beginning.
  int64_t start_power_sgd_iter = 1000;
  // A gradient is compressed if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;
  double orthogonalization_epsilon = 0;
  uint64_t random_seed = 0;
};

// In each step from start_power_sgd_iter on, for each matrix M of a bucket:
//   M += error;  P = M Q, summed over the ranks;  P orthonormal;  Q = Mᵀ P, averaged over the ranks
//   the gradient is P Qᵀ;  error = M - P Qᵀ
// where Q starts as the last step's (warm start) or random, made orthonormal. Other gradients are
// averaged uncompressed. A rank that starts without a saved state, or with a differing one, uses
// rank 0's factors.
class PowerSgdHook : public CommunicationHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options);
  ~PowerSgdHook() override;

  // INVALID_ARGUMENT: an option is out of range, or an error of CheckFloatBuckets().
  Status Layout(Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override;
  Status LoadState(std::string_view state) override;
  uint64_t bytes_given() const override;
  std::string DescribeOptions() const override;

  // The number of steps so far.
  int64_t iteration() const { return iteration_; }

 private:
  struct Matrix;

  Status Reduce(Communicator& communicator, const BucketView& bucket);
  Status ReduceInFull(Communicator& communicator, const BucketView& bucket);
  Status Compress(Communicator& communicator, const BucketView& bucket);
  Result<std::vector<float>> InitialQs(Communicator& communicator, Span<const Matrix> matrices,
                                       size_t count);
  Status AgreeOnIteration(Communicator& communicator);

  PowerSgdOptions options_;
  int64_t iteration_ = 0;
  std::map<size_t, std::vector<float>> errors_;
  std::map<size_t, std::vector<float>> qs_;
  // Whether all ranks have the same iteration_, and the parameters for which all have the same Q.
  bool iteration_agreed_ = false;
  std::set<size_t> agreed_;
  // The last member, so that its thread stops before the memory that its operations use is freed.
  const std::unique_ptr<HookThread> thread_;
};

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_POWER_SGD_H_
