// The reducer behind Reducer::Create().
#ifndef CADRE_WORKER_RUNTIME_BUCKETED_REDUCER_H_
#define CADRE_WORKER_RUNTIME_BUCKETED_REDUCER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "cadre/reducer.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/reduce/bucket_reduction.h"
#include "worker_runtime/reduce/gradient_readiness.h"
#include "worker_runtime/reduce/step_tail.h"

namespace cadre {

// Threads: as Reducer.
class BucketedReducer : public Reducer {
 public:
  // The parameters have been checked and broadcast. LayOut() comes before everything else.
  BucketedReducer(Communicator& communicator, std::vector<Parameter> parameters,
                  ReducerOptions options);
  // Assigns the gradients to buckets in this order.
  Status LayOut(const std::vector<size_t>& order);

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<std::vector<size_t>>& buckets() const override {
    return reduction_.buckets().assignment();
  }
  int64_t finished_steps() const override { return finished_steps_; }
  Buffer Gradient(size_t i) const override { return reduction_.buckets().Gradient(i); }
  uint64_t layout() const override { return reduction_.layout(); }
  std::shared_ptr<void> Storage(size_t i) const override { return reduction_.buckets().Storage(i); }
  Status BeginStep(bool synchronize, double weight) override;
  Status MarkReady(size_t i, const void* gradient) override;
  bool IsMarked(size_t i) const override;
  void NoteReady(size_t i) override;
  void MarkNotFinite(size_t i) override;
  Result<StepReport> Finish(std::chrono::nanoseconds timeout) override;
  double usual_weight() const override { return usual_weight_; }

 private:
  enum class Phase { kIdle, kLocal, kSynchronized };

  // The content of a gradient that is not ready, from before the ranks' parts were added.
  struct SavedGradient {
    size_t index = 0;
    std::vector<char> bytes;
  };

  Status AdoptReadyOrder();
  bool MindsWeights() const;
  Status AgreeOnUsualWeight(double weight);
  // What weights are divided by before buckets are multiplied by them. Without a hook these are
  // multiplied on their way, in float32 or float64, where it makes no difference.
  double DividedBy() const { return options_.hook == nullptr ? 1 : usual_weight_; }
  void ResetStep(double weight);

  Result<bool> Claim(size_t i);
  void Contribute(size_t i, const void* gradient);
  void StartBuckets() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  reduce::StepSummary Summary() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Status CollectMissing();
  Status CheckGraph() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status WaitForBuckets(StepReport& report, MonoTime deadline);
  Result<reduce::StepSummaries> ExchangeSummaries(MonoTime deadline);
  Status Judge(const reduce::StepSummaries& summaries, StepReport& report);
  void Settle(const reduce::StepSummaries& summaries);

  // Ends the use of this reducer; Fail() also that of the communicator.
  Status FailTogether(Status status);
  Status Fail(Status status);
  Status Explain(const std::string& what, const Status& status) const;
  void Enter(WorkerPhase phase);

  Communicator& communicator_;
  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;

  // Change only in Create(), BeginStep() and Finish().
  reduce::BucketReduction reduction_;
  bool first_step_done_ = false;
  bool ready_order_adopted_ = false;
  int64_t step_ = 0;
  int64_t finished_steps_ = 0;
  double weight_ = 1;
  double usual_weight_ = 1;
  // Of the last step that some rank had data for; 0: there was none.
  double mean_weight_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<SavedGradient> saved_;

  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  Status failure_ ABSL_GUARDED_BY(mutex_);
  reduce::GradientReadiness readiness_ ABSL_GUARDED_BY(mutex_);
  std::optional<size_t> not_finite_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_BUCKETED_REDUCER_H_
