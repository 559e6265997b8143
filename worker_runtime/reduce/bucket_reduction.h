// The buckets of a reducer and the collectives that reduce them. A bucket is started when all of
// its gradients are complete and all buckets before it have been started.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_BUCKET_REDUCTION_H_
#define CADRE_WORKER_RUNTIME_REDUCE_BUCKET_REDUCTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/reduce/bucket_queue.h"
#include "worker_runtime/reduce/gradient_buckets.h"
#include "worker_runtime/reduce/step_tail.h"

namespace cadre::reduce {

// One thread at a time.
class BucketReduction {
 public:
  // All must outlive this; `hook` and `page` may be null.
  BucketReduction(Communicator* communicator, Span<const Parameter> parameters,
                  CommunicationHook* hook, progress::ProgressPage* page);
  // Aborts the communicator where a collective runs, and waits for it.
  ~BucketReduction();
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // Collective, between steps: assigns the gradients to buckets in this order. Their content moves
  // along.
  Status LayOut(Span<const size_t> limits, const std::vector<size_t>& order);
  const GradientBuckets& buckets() const { return buckets_; }
  // Changes when gradients have moved.
  uint64_t layout() const { return layout_; }

  void BeginStep(int64_t step);
  // One more gradient is complete, or will not be in this step.
  void CompleteOne(size_t gradient) { queue_.CompleteOne(buckets_.BucketOf(gradient)); }
  // Starts the buckets that can be. `weight` is this rank's; `summary` is asked for with the last
  // bucket.
  void StartComplete(double weight, absl::FunctionRef<StepSummary()> summary);

  struct Waited {
    // Not OK: of this bucket.
    Status status;
    size_t bucket = 0;
    // How long the collectives took, and how long this waited for them.
    std::chrono::nanoseconds communication{};
    std::chrono::nanoseconds exposed{};
  };
  // For all buckets, once all have been started.
  Waited Wait(MonoTime deadline);

  // Bytes that this rank gave to collectives in this step.
  size_t BytesGiven() const;

 private:
  std::shared_ptr<Work> Start(size_t bucket, double weight,
                              absl::FunctionRef<StepSummary()> summary);

  Communicator& communicator_;
  const Span<const Parameter> parameters_;
  CommunicationHook* const hook_;
  progress::ProgressPage* const page_;
  GradientBuckets buckets_;
  uint64_t layout_ = 0;
  BucketQueue queue_;
  int64_t step_ = 0;
  uint64_t hook_bytes_ = 0;  // given by the hook before this step
};

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_BUCKET_REDUCTION_H_
