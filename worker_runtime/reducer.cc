// Reducer::Create(), and BucketedReducer, the only implementation, which reduces gradients in
// buckets.
#include "cadre/reducer.h"

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/time.h"
#include "cadre/same_options.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/reduce/bucket_reduction.h"
#include "worker_runtime/reduce/element_scaling.h"
#include "worker_runtime/reduce/gradient_buckets.h"
#include "worker_runtime/reduce/gradient_scan.h"

namespace cadre {
namespace {

// Threads may use it as documented at Reducer.
class BucketedReducer : public Reducer {
 public:
  // The parameters must have been checked and broadcast. LayOut() must be called before anything
  // else.
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

  // The content of a gradient that is not ready, saved before the ranks' gradients are added to it.
  struct SavedGradient {
    size_t index = 0;
    std::vector<char> bytes;
  };

  Status AdoptReadyOrder();
  bool UsesWeights() const;
  Status AgreeOnUsualWeight(double weight);
  // The number by which weights are divided before buckets are multiplied by them. Without a hook
  // buckets are multiplied while they are reduced, in float32 or float64, where the magnitude makes
  // no difference.
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
  Status CheckStep(const reduce::StepSummaries& summaries, StepReport& report);
  void Settle(const reduce::StepSummaries& summaries);

  // Makes every later call fail; Fail() also aborts the communicator.
  Status FailTogether(Status status);
  Status Fail(Status status);
  Status Explain(const std::string& what, const Status& status) const;
  void Enter(WorkerPhase phase);

  Communicator& communicator_;
  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;

  // These change only in Create(), BeginStep() and Finish().
  reduce::BucketReduction reduction_;
  bool first_step_done_ = false;
  bool ready_order_adopted_ = false;
  int64_t step_ = 0;
  int64_t finished_steps_ = 0;
  double weight_ = 1;
  double usual_weight_ = 1;
  // The mean weight of the last step for which some rank had data; 0: there was none.
  double mean_weight_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<SavedGradient> saved_;

  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  Status failure_ ABSL_GUARDED_BY(mutex_);
  reduce::GradientReadiness readiness_ ABSL_GUARDED_BY(mutex_);
  std::optional<size_t> not_finite_ ABSL_GUARDED_BY(mutex_);
};

const char* Name(NonFinite non_finite) {
  switch (non_finite) {
    case NonFinite::kError:
      return "kError";
    case NonFinite::kSkip:
      return "kSkip";
    case NonFinite::kIgnore:
      return "kIgnore";
  }
  return "unknown";
}

std::string Describe(const CommunicationHook* hook) {
  if (hook == nullptr) return "none";
  int status = 0;
  char* const name = abi::__cxa_demangle(typeid(*hook).name(), nullptr, nullptr, &status);
  std::string kind = status == 0 ? name : typeid(*hook).name();
  std::free(name);
  const std::string chosen = hook->DescribeOptions();
  return chosen.empty() ? kind : absl::StrCat(kind, " (", chosen, ")");
}

ChosenOptions ChosenIn(const ReducerOptions& options) {
  return {
      {"ReducerOptions::first_bucket_bytes", std::to_string(options.first_bucket_bytes)},
      {"ReducerOptions::bucket_bytes", std::to_string(options.bucket_bytes)},
      {"ReducerOptions::static_graph", options.static_graph ? "true" : "false"},
      {"ReducerOptions::non_finite", Name(options.non_finite)},
      {"ReducerOptions::fingerprint_every", std::to_string(options.fingerprint_every)},
      {"ReducerOptions::broadcast_parameters", options.broadcast_parameters ? "true" : "false"},
      {"ReducerOptions::hook", Describe(options.hook.get())},
  };
}

}  // namespace

Result<std::unique_ptr<Reducer>> Reducer::Create(Communicator& communicator,
                                                 std::vector<Parameter> parameters,
                                                 ReducerOptions options) {
  if (options.page == nullptr) options.page = progress::ProgressPage::OfThisWorker();
  // The exchange comes first, so that no rank waits in it for one whose own check failed.
  RETURN_IF_ERROR(CheckSameParameters(communicator, parameters, options.timeout));
  RETURN_IF_ERROR(CheckSameOptions(communicator, ChosenIn(options), options.timeout));
  if (options.fingerprint_every < 0) {
    return InvalidArgumentError(absl::StrCat("ReducerOptions::fingerprint_every is ",
                                             options.fingerprint_every,
                                             "; it is a number of steps, or 0: never"));
  }
  RETURN_IF_ERROR(CheckReducible(parameters, reduce::kMaxTailWord - 1));
  if (options.broadcast_parameters) {
    RETURN_IF_ERROR(BroadcastParameters(communicator, parameters, options.timeout));
  }
  auto reducer =
      std::make_unique<BucketedReducer>(communicator, std::move(parameters), std::move(options));
  RETURN_IF_ERROR(reducer->LayOut(reduce::ReverseOrder(reducer->size())));
  return std::unique_ptr<Reducer>(std::move(reducer));
}

namespace {

std::chrono::nanoseconds Until(MonoTime deadline) {
  return absl::ToChronoNanoseconds(deadline - MonoNow());
}

}  // namespace

BucketedReducer::BucketedReducer(Communicator& communicator, std::vector<Parameter> parameters,
                                 ReducerOptions options)
    : communicator_(communicator),
      parameters_(std::move(parameters)),
      options_(std::move(options)),
      reduction_(&communicator_, parameters_, options_.hook.get(), options_.page.get()),
      readiness_(parameters_.size(), options_.static_graph) {}

void BucketedReducer::Enter(WorkerPhase phase) {
  if (options_.page != nullptr) options_.page->Enter(phase, step_);
}

Status BucketedReducer::LayOut(const std::vector<size_t>& order) {
  return reduction_.LayOut({options_.first_bucket_bytes, options_.bucket_bytes}, order);
}

bool BucketedReducer::IsMarked(size_t i) const {
  absl::MutexLock lock(&mutex_);
  return readiness_.IsMarked(i);
}

Status BucketedReducer::FailTogether(Status status) {
  Enter(WorkerPhase::kFailed);
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  failure_ = std::move(status);
  phase_ = Phase::kIdle;
  return failure_;
}

Status BucketedReducer::Fail(Status status) {
  status = FailTogether(std::move(status));
  communicator_.Abort();
  return status;
}

Status BucketedReducer::AdoptReadyOrder() {
  std::vector<size_t> ready;
  {
    absl::MutexLock lock(&mutex_);
    ready = readiness_.order();
  }
  const Result<std::vector<size_t>> order =
      reduce::AgreeOnReadyOrder(communicator_, ready, size(), options_.timeout);
  if (!order.ok()) return Fail(order.status());
  const Status laid_out = LayOut(*order);
  if (!laid_out.ok()) return Fail(laid_out);
  ready_order_adopted_ = true;
  return OkStatus();
}

// Whether gradients multiplied by raw weights may become too large: for a hook's limit, or in
// float16 on a device. Only then ranks wait for each other in the first step.
bool BucketedReducer::UsesWeights() const {
  return options_.hook != nullptr ||
         std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
           return parameter.reduced_elsewhere && parameter.kept_as_float16;
         });
}

// All ranks know the mean weight of the previous step; for the first step they exchange weights if
// it matters.
Status BucketedReducer::AgreeOnUsualWeight(double weight) {
  if (communicator_.size() == 1 || (mean_weight_ == 0 && !UsesWeights())) return OkStatus();
  if (mean_weight_ == 0) {
    double sum = weight;
    const Status summed = WaitOrAbort(
        communicator_, communicator_.AllReduce({&sum, 1, DataType::kFloat64}, ReduceOp::kSum),
        options_.timeout);
    if (!summed.ok()) return Fail(summed);
    mean_weight_ = sum > 0 ? sum / communicator_.size() : 1;
  }
  usual_weight_ = mean_weight_;
  return OkStatus();
}

Status BucketedReducer::BeginStep(bool synchronize, double weight) {
  if (!(weight >= 0) || std::isinf(weight)) {
    return InvalidArgumentError(
        absl::StrCat("a rank's weight is how many samples its gradients stand for, not ", weight));
  }
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failure_);
    if (phase_ == Phase::kSynchronized) {
      if (readiness_.any()) {
        return FailedPreconditionError(
            "BeginStep() was called during a step: call Finish() after the backward pass");
      }
      weight_ = weight;
      if (synchronize) return OkStatus();
      --step_;
    }
    if (!synchronize) {
      phase_ = Phase::kLocal;
      return OkStatus();
    }
  }
  if (first_step_done_ && !ready_order_adopted_) RETURN_IF_ERROR(AdoptReadyOrder());
  RETURN_IF_ERROR(AgreeOnUsualWeight(weight));
  ResetStep(weight);
  Enter(WorkerPhase::kForward);
  return OkStatus();
}

void BucketedReducer::ResetStep(double weight) {
  weight_ = weight;
  ++step_;
  saved_.clear();
  const bool alike = options_.hook == nullptr || options_.hook->KeepsReplicasEqual();
  const bool compare = alike && communicator_.size() > 1 && options_.fingerprint_every > 0 &&
                       step_ % options_.fingerprint_every == 0;
  fingerprint_ = compare ? Fingerprint(parameters_) : 0;
  absl::MutexLock lock(&mutex_);
  phase_ = Phase::kSynchronized;
  readiness_.BeginStep();
  not_finite_.reset();
  reduction_.BeginStep(step_);
}

// Returns whether the gradient is complete with this mark.
Result<bool> BucketedReducer::Claim(size_t i) {
  Status refused;
  bool complete = false;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failure_);
    const std::string name = absl::StrCat("'", absl::CHexEscape(parameters_[i].name), "'");
    if (phase_ == Phase::kIdle) {
      refused = FailedPreconditionError(absl::StrCat(
          "the gradient of ", name,
          " became ready outside a step: call BeginStep() before the backward "
          "pass (was forward() called on the module inside the data-parallel one, or in "
          "evaluation mode?)"));
    } else if (!readiness_.MayMark(i)) {
      refused = FailedPreconditionError(absl::StrCat(
          "the gradient of ", name, " became ready ",
          options_.static_graph ? "more often than in the first step" : "twice", " in step ", step_,
          ": run one backward pass for each step, or accumulate without synchronization"));
    } else {
      const bool first = !readiness_.any();
      complete = readiness_.Mark(i);
      if (!first) return complete;
    }
  }
  if (!refused.ok()) return Fail(refused);
  Enter(WorkerPhase::kBackward);
  return complete;
}

void BucketedReducer::Contribute(size_t i, const void* gradient) {
  const Buffer& place = reduction_.buckets().Gradient(i);
  if (options_.non_finite != NonFinite::kIgnore) {
    if (!reduce::CopyAndCheckFinite(place, gradient)) MarkNotFinite(i);
  } else if (gradient != place.data && place.count > 0) {
    std::memcpy(place.data, gradient, place.count * SizeOf(place.type));
  }
}

void BucketedReducer::NoteReady(size_t i) {
  absl::MutexLock lock(&mutex_);
  readiness_.Note(i);
}

void BucketedReducer::MarkNotFinite(size_t i) {
  absl::MutexLock lock(&mutex_);
  if (!not_finite_) not_finite_ = i;
}

reduce::StepSummary BucketedReducer::Summary() const {
  reduce::StepSummary summary;
  summary.weight = weight_;
  summary.not_finite = not_finite_;
  summary.step = step_;
  summary.fingerprint = fingerprint_;
  for (size_t i = 0; i < size(); ++i) {
    summary.used.push_back(weight_ > 0 && readiness_.IsUsed(i));
  }
  return summary;
}

void BucketedReducer::StartBuckets() {
  reduction_.StartComplete(weight_ / DividedBy(),
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Summary(); });
}

Status BucketedReducer::MarkReady(size_t i, const void* gradient) {
  CADRE_CHECK(i < size(), "gradient ", i, " of ", size());
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok() && phase_ == Phase::kLocal) {
      readiness_.Accumulate(i);
      return OkStatus();
    }
  }
  ASSIGN_OR_RETURN(const bool complete, Claim(i));
  Contribute(i, gradient);
  if (!complete) return OkStatus();
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  reduction_.CompleteOne(i);
  StartBuckets();
  return OkStatus();
}

Status BucketedReducer::CheckGraph() const {
  if (!options_.static_graph || weight_ == 0) return OkStatus();
  std::vector<std::string> names;
  for (const size_t i : readiness_.Missing())
    names.push_back(absl::CHexEscape(parameters_[i].name));
  if (names.empty()) return OkStatus();
  return FailedPreconditionError(absl::StrCat(
      "gradients did not become ready in step ", step_, " on rank ", communicator_.rank(),
      " as often as in the first step: ", reduce::JoinNames(std::move(names)),
      "; the graph changes, so do not set static_graph"));
}

Status BucketedReducer::CollectMissing() {
  Status changed;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failure_);
    changed = CheckGraph();
  }
  if (!changed.ok()) return Fail(changed);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < size(); ++i) {
    if (!readiness_.IsComplete(i)) reduction_.CompleteOne(i);
    // If it became ready before, its bucket may have been started already.
    if (readiness_.IsMarked(i)) continue;
    const Buffer& place = reduction_.buckets().Gradient(i);
    const char* data = static_cast<const char*>(place.data);
    saved_.push_back({i, {data, data + place.count * SizeOf(place.type)}});
  }
  if (weight_ > 0) readiness_.LearnGraph();
  StartBuckets();
  return OkStatus();
}

Status BucketedReducer::Explain(const std::string& what, const Status& status) const {
  std::string text = absl::StrCat("rank ", communicator_.rank(), ", step ", step_, ", ", what, ": ",
                                  status.message());
  if (options_.page != nullptr && status.code() != StatusCode::kInvalidArgument) {
    absl::StrAppend(&text, "; where the ranks are: ", options_.page->DescribeAll());
  }
  return Status(status.code(), text);
}

Status BucketedReducer::WaitForBuckets(StepReport& report, MonoTime deadline) {
  const reduce::BucketReduction::Waited waited = reduction_.Wait(deadline);
  report.communication = waited.communication;
  if (!waited.status.ok()) {
    return Fail(Explain(reduction_.buckets().Describe(waited.bucket, parameters_), waited.status));
  }
  report.buckets = reduction_.buckets().size();
  report.exposed_wait = waited.exposed;
  report.bytes = reduction_.BytesGiven();
  return OkStatus();
}

Result<reduce::StepSummaries> BucketedReducer::ExchangeSummaries(MonoTime deadline) {
  reduce::StepSummary own;
  {
    absl::MutexLock lock(&mutex_);
    own = Summary();
  }
  const int ranks = communicator_.size();
  if (ranks == 1) {
    return reduce::StepSummaries{
        own.weight, own.weight != 1, {{own.not_finite, own.step, 0}}, own.used};
  }
  if (options_.hook != nullptr) {
    reduce::WriteTail(own, communicator_.rank(), ranks, reduction_.buckets().tail());
    const Status reduced = WaitOrAbort(
        communicator_,
        communicator_.AllReduce(reduction_.buckets().tail(),
                                Reduction(ReduceOp::kSum, reduce::AverageFactor(weight_, ranks))),
        Until(deadline));
    if (!reduced.ok()) return Fail(Explain("exchange of the ranks' summaries", reduced));
  }
  return reduce::ReadTail(reduction_.buckets().tail(), ranks, size());
}

Status BucketedReducer::CheckStep(const reduce::StepSummaries& summaries, StepReport& report) {
  Status same = reduce::CheckSameStep(summaries, step_);
  if (!same.ok()) return same;
  RETURN_IF_ERROR(reduce::CheckDrift(communicator_, parameters_, reduce::Drifted(summaries), step_,
                                     options_.timeout));
  report.weight = summaries.uneven ? summaries.weight : communicator_.size();
  report.used = summaries.used;
  report.reason = reduce::DescribeNonFinite(summaries, parameters_, step_);
  // A hook's output is the same on all ranks, so they decide alike without communicating.
  if (report.reason.empty() && options_.hook != nullptr && options_.hook->KeepsReplicasEqual() &&
      options_.non_finite != NonFinite::kIgnore) {
    report.reason =
        reduce::DescribeNonFiniteFromHook(reduction_.buckets(), summaries.used, parameters_, step_);
  }
  if (report.reason.empty()) return OkStatus();
  if (options_.non_finite == NonFinite::kError) return OutOfRangeError(report.reason);
  report.skipped = true;
  return OkStatus();
}

void BucketedReducer::Settle(const reduce::StepSummaries& summaries) {
  const double ranks = communicator_.size();
  const double total = summaries.uneven ? summaries.weight : ranks;
  if (total > 0 && ranks > 1) {
    // If the weights have the usual mean, it is already the average.
    const double rest = DividedBy() * ranks / total;
    for (size_t b = 0; b < reduction_.buckets().size() && rest != 1; ++b) {
      reduce::MultiplyInPlace(reduction_.buckets().View(b).buffer, rest);
    }
    mean_weight_ = total / ranks;
  }
  for (const SavedGradient& saved : saved_) {
    const Buffer& place = reduction_.buckets().Gradient(saved.index);
    if (summaries.used[saved.index] || saved.bytes.empty()) continue;
    std::memcpy(place.data, saved.bytes.data(), saved.bytes.size());
  }
}

Result<StepReport> BucketedReducer::Finish(std::chrono::nanoseconds timeout) {
  StepReport report;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failure_);
    report.step = step_;
    if (phase_ == Phase::kLocal) {
      phase_ = Phase::kIdle;
      return report;
    }
    if (phase_ == Phase::kIdle) {
      return FailedPreconditionError("Finish() was called without BeginStep()");
    }
  }
  const MonoTime deadline = MonoNow() + timeout;
  RETURN_IF_ERROR(CollectMissing());
  RETURN_IF_ERROR(WaitForBuckets(report, deadline));
  ASSIGN_OR_RETURN(const reduce::StepSummaries summaries, ExchangeSummaries(deadline));
  const Status judged = CheckStep(summaries, report);
  if (!judged.ok()) return FailTogether(judged);
  Settle(summaries);
  report.synchronized = true;
  first_step_done_ = true;
  ++finished_steps_;
  Enter(WorkerPhase::kBetween);
  absl::MutexLock lock(&mutex_);
  phase_ = Phase::kIdle;
  readiness_.ForgetAccumulated();
  return report;
}

}  // namespace cadre
