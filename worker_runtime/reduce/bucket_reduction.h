// The buckets of a reducer and the collectives that reduce them, and the ranks' summaries of a
// step, which travel with the last bucket.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_BUCKET_REDUCTION_H_
#define CADRE_WORKER_RUNTIME_REDUCE_BUCKET_REDUCTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "cadre/work.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/reduce/gradient_buckets.h"

namespace cadre::reduce {

// The ranks' summaries of a step, in a few elements after the gradients of the last bucket, so that
// exchanging them needs no collective of its own. Pure.
//
//   0                        this rank's weight
//   1                        whether that is not 1
//   2 + kWordsOfRank * r     rank r's words (zero from all others): 1 + the parameter whose
//                            gradient is not finite, the step, four quarters of the fingerprint
//   behind the last rank     for each parameter, whether this rank had a gradient
//
// Every rank gets the sum of all tails. Each rank's tail is multiplied during the reduction, like
// its gradients, so the rank writes its words divided by that factor; integers up to kMaxTailWord
// are restored exactly.

inline constexpr int64_t kMaxTailWord = int64_t{1} << 20;
inline constexpr size_t kWordsOfRank = 6;

// One rank's summary.
struct StepSummary {
  double weight = 1;
  std::optional<size_t> not_finite;
  int64_t step = 0;
  // 0 if there is none in this step.
  uint64_t fingerprint = 0;
  std::vector<bool> used;
};

// All ranks' summaries.
struct StepSummaries {
  double weight = 0;
  // Whether some rank's weight was not 1.
  bool uneven = false;
  struct Rank {
    std::optional<size_t> not_finite;
    // Modulo kMaxTailWord.
    int64_t step = 0;
    uint64_t fingerprint = 0;
  };
  std::vector<Rank> ranks;
  std::vector<bool> used;
};

size_t TailCount(int ranks, size_t parameters);

// The factor by which a rank of this weight multiplies its gradients, so that their sum is the
// average when all weights are 1. A rank of weight 0 sends zeros, but its tail is still multiplied
// by a factor other than 0.
double AverageFactor(double weight, int ranks);

// `tail` is kFloat32 or kFloat64, with TailCount() elements.
void WriteTail(const StepSummary& summary, int rank, int ranks, const Buffer& tail);
StepSummaries ReadTail(const Buffer& tail, int ranks, size_t parameters);

// Checks that all ranks are in step `step`; otherwise INVALID_ARGUMENT, naming those that are not.
Status CheckSameStep(const StepSummaries& summaries, int64_t step);
// The ranks whose fingerprint differs from that of rank 0.
std::vector<int> Drifted(const StepSummaries& summaries);

// Describes which ranks' gradients of which parameters are not finite; empty if all are finite.
// Pure.
std::string DescribeNonFinite(const StepSummaries& summaries, Span<const Parameter> parameters,
                              int64_t step);

// Describes the first gradient in `buckets` that is not finite after a hook whose inputs were
// finite; empty if all are finite. Gradients that no rank used are skipped: their previous content
// is restored. Pure.
std::string DescribeNonFiniteFromHook(const GradientBuckets& buckets, const std::vector<bool>& used,
                                      Span<const Parameter> parameters, int64_t step);

// Collective if any rank drifted: DATA_LOSS, naming the first parameter that differs.
Status CheckDrift(Communicator& communicator, Span<const Parameter> parameters,
                  const std::vector<int>& drifted, int64_t step, std::chrono::nanoseconds timeout);

struct StartedBucket {
  // Null if there is nothing to wait for.
  std::shared_ptr<Work> work;
  // The sequence number of its all-reduce in the progress page.
  uint64_t sequence = 0;
};

// The buckets of the current step. A bucket is started when all of its gradients are complete and
// all buckets before it have been started, so that all ranks start them in the same order whatever
// the order of their backward passes. Used by one thread at a time, except started(), which any
// thread may call once all are started.
class BucketQueue {
 public:
  // Begins a step in which no bucket is started and no gradient is complete.
  void Begin(Span<const Bucket> buckets);
  // Reports that one more gradient of the bucket is complete, or will not be in this step.
  void CompleteOne(size_t bucket);
  // Starts the buckets that can be started.
  void StartNext(absl::FunctionRef<StartedBucket(size_t bucket)> start);

  size_t size() const { return states_.size(); }
  const StartedBucket& started(size_t bucket) const { return states_[bucket].started; }
  bool any_runs() const;
  // Waits until none runs, at most `timeout` for each.
  void Wait(std::chrono::nanoseconds timeout);

 private:
  struct State {
    size_t pending = 0;
    StartedBucket started;
  };

  std::vector<State> states_;
  size_t next_ = 0;
};

// Used by one thread at a time.
class BucketReduction {
 public:
  // All arguments must outlive this; `hook` and `page` may be null.
  BucketReduction(Communicator* communicator, Span<const Parameter> parameters,
                  CommunicationHook* hook, progress::ProgressPage* page);
  // Aborts the communicator if a collective is running, and waits for it.
  ~BucketReduction();
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // Collective, between steps: assigns the gradients to buckets in this order and moves their
  // content.
  Status LayOut(Span<const size_t> limits, const std::vector<size_t>& order);
  const GradientBuckets& buckets() const { return buckets_; }
  // Changes when gradients have moved.
  uint64_t layout() const { return layout_; }

  void BeginStep(int64_t step);
  // Reports that one more gradient is complete, or will not be in this step.
  void CompleteOne(size_t gradient) { queue_.CompleteOne(buckets_.BucketOf(gradient)); }
  // Starts the buckets that can be started. `weight` is this rank's; `summary` is called with the
  // last bucket.
  void StartComplete(double weight, absl::FunctionRef<StepSummary()> summary);

  struct Waited {
    // An error, if any, is that of `bucket`.
    Status status;
    size_t bucket = 0;
    // How long the collectives took, and how long this waited for them.
    std::chrono::nanoseconds communication{};
    std::chrono::nanoseconds exposed{};
  };
  // Waits for all buckets, once all have been started.
  Waited Wait(MonoTime deadline);

  // Bytes that this rank passed to collectives in this step.
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
