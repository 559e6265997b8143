// PowerSGD: each matrix of gradients travels as two thin factors. After Vogels et al., "PowerSGD:
// Practical low-rank gradient compression for distributed optimization", and PyTorch's hook.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_POWER_SGD_H_
#define CADRE_WORKER_RUNTIME_HOOKS_POWER_SGD_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "worker_runtime/communication_hook.h"
#include "worker_runtime/hooks/hook_state.h"
#include "worker_runtime/hooks/hook_thread.h"
#include "worker_runtime/hooks/low_rank.h"

namespace cadre::hooks {

// Names and defaults are PyTorch's.
struct PowerSgdOptions {
  int matrix_approximation_rank = 1;
  // So many steps are reduced in full first: gradients change too fast at the beginning.
  int64_t start_power_sgd_iter = 1000;
  // A gradient is compressed when that makes it smaller by more than this.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;
  double orthogonalization_epsilon = 0;
  uint64_t random_seed = 0;
};

// In each step from start_power_sgd_iter on, for each matrix M of a bucket:
//   M += error;  P = M Q, summed over the ranks;  P orthonormal;  Q = Mᵀ P, averaged over the ranks
//   the gradient is P Qᵀ;  error = M - P Qᵀ
// where Q starts as the last step's (warm start) or randomly, made orthonormal. Other gradients are
// averaged as they are. The factors of a rank that comes without a saved state, or with another
// one, are rank 0's.
class PowerSgdHook : public CommunicationHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {}

  // INVALID_ARGUMENT: an option out of range, or as CheckFloatBuckets().
  absl::Status Layout(absl::Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  absl::StatusOr<std::string> SaveState() const override;
  absl::Status LoadState(absl::string_view state) override;
  uint64_t bytes_given() const override { return thread_.bytes_given(); }

  // Steps so far.
  int64_t iteration() const { return iteration_; }

 private:
  // One matrix of the bucket that is being reduced.
  struct Matrix {
    GradientView gradient;
    MatrixShape shape;
    float* values = nullptr;
    size_t p = 0;  // where its P starts among all
    size_t q = 0;
  };

  absl::Status Reduce(Communicator& communicator, const BucketView& bucket);
  absl::Status ReduceInFull(Communicator& communicator, const BucketView& bucket);
  absl::Status Compress(Communicator& communicator, const BucketView& bucket);
  absl::StatusOr<std::vector<float>> InitialQs(Communicator& communicator,
                                               absl::Span<const Matrix> matrices, size_t count);
  absl::Status AgreeOnIteration(Communicator& communicator);

  PowerSgdOptions options_;
  int64_t iteration_ = 0;
  FloatsByParameter errors_;
  FloatsByParameter qs_;
  // Whether all ranks count alike, and of which parameters all have the same Q.
  bool iteration_agreed_ = false;
  std::set<size_t> agreed_;
  HookThread thread_;
};

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_POWER_SGD_H_
