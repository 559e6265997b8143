// Reduces the buckets of a step, one after the other as they become complete, with the ranks'
// summaries of the step in the tail of the last one.
#include "worker_runtime/reduce/bucket_reduction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/reduce/element_scaling.h"
#include "worker_runtime/reduce/gradient_buckets.h"
#include "worker_runtime/reduce/gradient_scan.h"

namespace cadre::reduce {
BucketReduction::BucketReduction(Communicator* communicator, Span<const Parameter> parameters,
                                 CommunicationHook* hook, progress::ProgressPage* page)
    : communicator_(*communicator), parameters_(parameters), hook_(hook), page_(page) {}

BucketReduction::~BucketReduction() {
  if (!queue_.any_runs()) return;
  communicator_.Abort();
  queue_.Wait(kAbortGrace);
}

Status BucketReduction::LayOut(Span<const size_t> limits, const std::vector<size_t>& order) {
  std::vector<GradientShape> shapes;
  for (const Parameter& parameter : parameters_) {
    const Buffer& value = parameter.value;
    shapes.push_back({value.count * SizeOf(value.type), value.type,
                      parameter.reduced_elsewhere ? parameter.bucket_kind : -1});
  }
  std::vector<Bucket> assignment = AssignBuckets(shapes, limits, order);
  if (assignment == buckets_.assignment()) return OkStatus();
  ASSIGN_OR_RETURN(GradientBuckets buckets,
                   GradientBuckets::Allocate(communicator_, parameters_, std::move(assignment),
                                             TailCount(communicator_.size(), parameters_.size())));
  if (layout_ > 0) buckets.CopyFrom(buckets_);
  buckets_ = std::move(buckets);
  ++layout_;
  if (hook_ == nullptr) return OkStatus();
  std::vector<BucketView> views;
  for (size_t b = 0; b < buckets_.size(); ++b) views.push_back(buckets_.View(b));
  return hook_->Layout(views);
}

void BucketReduction::BeginStep(int64_t step) {
  step_ = step;
  if (hook_ != nullptr) hook_bytes_ = hook_->bytes_given();
  queue_.Begin(buckets_.assignment());
}

void BucketReduction::StartComplete(double weight, absl::FunctionRef<StepSummary()> summary) {
  queue_.StartNext([&](size_t bucket) {
    StartedBucket started;
    if (page_ != nullptr) {
      started.sequence =
          page_->Begin(step_, static_cast<int>(bucket), buckets_.View(bucket).buffer);
    }
    started.work = Start(bucket, weight, summary);
    return started;
  });
}

std::shared_ptr<Work> BucketReduction::Start(size_t bucket, double weight,
                                             absl::FunctionRef<StepSummary()> summary) {
  const BucketView view = buckets_.View(bucket);
  if (weight == 0 && view.buffer.count > 0) {
    std::memset(view.buffer.data, 0, view.buffer.count * SizeOf(view.buffer.type));
  }
  if (hook_ != nullptr) {
    // A single rank is its own average, whatever its weight: nothing divides by the sum of weights.
    if (communicator_.size() > 1 && weight > 0 && weight != 1) {
      MultiplyInPlace(view.buffer, weight);
    }
    return hook_->Start(communicator_, view);
  }
  if (communicator_.size() == 1) return nullptr;
  // All of its gradients are reduced elsewhere.
  if (buckets_.WithTail(bucket).count == 0) return nullptr;
  if (bucket + 1 == buckets_.size()) {
    WriteTail(summary(), communicator_.rank(), communicator_.size(), buckets_.tail());
  }
  // Multiplied before the sum, so that the sum cannot overflow where the average does not.
  return communicator_.AllReduce(
      buckets_.WithTail(bucket),
      Reduction(ReduceOp::kSum, AverageFactor(weight, communicator_.size())));
}

BucketReduction::Waited BucketReduction::Wait(MonoTime deadline) {
  const MonoTime begin = MonoNow();
  Waited waited;
  for (size_t b = 0; b < queue_.size() && waited.status.ok(); ++b) {
    const auto& [work, sequence] = queue_.started(b);
    if (work != nullptr) {
      if (!work->done() && page_ != nullptr) {
        page_->Enter(WorkerPhase::kWaiting, step_, static_cast<int>(b));
      }
      waited.status = work->Wait(absl::ToChronoNanoseconds(deadline - MonoNow()));
      waited.communication += work->duration();
    }
    waited.bucket = b;
    if (page_ != nullptr) page_->End(sequence, waited.status.ok());
  }
  waited.exposed = absl::ToChronoNanoseconds(MonoNow() - begin);
  return waited;
}

size_t BucketReduction::BytesGiven() const {
  if (communicator_.size() == 1) return 0;
  const size_t tail = buckets_.tail().count * SizeOf(buckets_.tail().type);
  if (hook_ == nullptr) return buckets_.bytes() + tail;
  return hook_->bytes_given() - hook_bytes_ + tail;
}

void BucketQueue::Begin(Span<const Bucket> buckets) {
  states_.clear();
  for (const Bucket& bucket : buckets) states_.push_back({bucket.size(), {}});
  next_ = 0;
}

void BucketQueue::CompleteOne(size_t bucket) {
  size_t& pending = states_.at(bucket).pending;
  CADRE_CHECK(pending > 0, "bucket ", bucket, " is complete already");
  --pending;
}

void BucketQueue::StartNext(absl::FunctionRef<StartedBucket(size_t bucket)> start) {
  while (next_ < states_.size() && states_[next_].pending == 0) {
    const size_t bucket = next_++;
    states_[bucket].started = start(bucket);
  }
}

bool BucketQueue::any_runs() const {
  return std::any_of(states_.begin(), states_.end(), [](const State& state) {
    return state.started.work != nullptr && !state.started.work->done();
  });
}

void BucketQueue::Wait(std::chrono::nanoseconds timeout) {
  for (const State& state : states_) {
    if (state.started.work != nullptr) state.started.work->Wait(timeout).IgnoreError();
  }
}

std::string DescribeNonFinite(const StepSummaries& summaries, Span<const Parameter> parameters,
                              int64_t step) {
  std::vector<std::string> found;
  // Gradients on a device may be checked after the next step has begun.
  bool late = false;
  for (size_t rank = 0; rank < summaries.ranks.size(); ++rank) {
    const std::optional<size_t> parameter = summaries.ranks[rank].not_finite;
    if (!parameter || *parameter >= parameters.size()) continue;
    late = late || parameters[*parameter].reduced_elsewhere;
    found.push_back(
        absl::StrCat("rank ", rank, " of '", absl::CHexEscape(parameters[*parameter].name), "'"));
  }
  if (found.empty()) return "";
  return absl::StrCat("a gradient is not finite in step ", step,
                      late ? " or the one before it" : "", ": on ", JoinNames(std::move(found)));
}

std::string DescribeNonFiniteFromHook(const GradientBuckets& buckets, const std::vector<bool>& used,
                                      Span<const Parameter> parameters, int64_t step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!used[i] || IsFinite(buckets.Gradient(i))) continue;
    return absl::StrCat(
        "the gradient of '", absl::CHexEscape(parameters[i].name), "' is not finite in step ", step,
        " after the communication hook, although the gradients of all ranks were finite before it; "
        "where the hook sends float16, nothing above 65504 fits: scale the loss down, clip before "
        "the hook (ClippingHook) or send bfloat16 (Bf16Hook)");
  }
  return "";
}

Status CheckDrift(Communicator& communicator, Span<const Parameter> parameters,
                  const std::vector<int>& drifted, int64_t step, std::chrono::nanoseconds timeout) {
  if (drifted.empty()) return OkStatus();
  // All ranks reach this. Values are compared one by one, to name the parameter.
  const Status named = CheckEqualValues(communicator, parameters, timeout).status();
  return DataLossError(absl::StrCat(
      "the parameters were different before step ", step, " on rank ", absl::StrJoin(drifted, ", "),
      " than on rank 0", named.ok() ? "" : absl::StrCat(": ", named.message()),
      "; something changed them without the other ranks, or a step went around the reducer"));
}

namespace {

constexpr size_t kWeight = 0;
constexpr size_t kUneven = 1;
constexpr size_t kFirstRank = 2;
constexpr size_t kQuarters = 4;
constexpr size_t kQuarterBits = 16;

size_t PlaceOf(int rank) { return kFirstRank + kWordsOfRank * static_cast<size_t>(rank); }

void Put(const Buffer& tail, size_t at, double value) {
  if (tail.type == DataType::kFloat64) {
    static_cast<double*>(tail.data)[at] = value;
  } else {
    static_cast<float*>(tail.data)[at] = static_cast<float>(value);
  }
}

double Get(const Buffer& tail, size_t at) {
  return tail.type == DataType::kFloat64 ? static_cast<const double*>(tail.data)[at]
                                         : static_cast<const float*>(tail.data)[at];
}

// Sample counts have an integer sum, which float32 arithmetic on the way may have changed slightly.
double GetWeight(const Buffer& tail) {
  constexpr double kMissedBy = 1e-6;
  const double weight = Get(tail, kWeight), whole = std::round(weight);
  return std::abs(weight - whole) < kMissedBy * whole ? whole : weight;
}

int64_t GetWord(const Buffer& tail, size_t at) { return std::llround(Get(tail, at)); }

}  // namespace

size_t TailCount(int ranks, size_t parameters) { return PlaceOf(ranks) + parameters; }

double AverageFactor(double weight, int ranks) { return (weight > 0 ? weight : 1) / ranks; }

void WriteTail(const StepSummary& summary, int rank, int ranks, const Buffer& tail) {
  CADRE_CHECK(tail.count == TailCount(ranks, summary.used.size()), "a tail of ", tail.count,
              " elements for ", summary.used.size(), " gradients of ", ranks, " ranks");
  const double factor = AverageFactor(summary.weight, ranks);
  for (size_t i = 0; i < tail.count; ++i) Put(tail, i, 0);
  Put(tail, kWeight, summary.weight / factor);
  Put(tail, kUneven, (summary.weight == 1 ? 0 : 1) / factor);
  size_t at = PlaceOf(rank);
  Put(tail, at++, (summary.not_finite ? static_cast<double>(*summary.not_finite + 1) : 0) / factor);
  Put(tail, at++, static_cast<double>(summary.step % kMaxTailWord) / factor);
  for (size_t quarter = 0; quarter < kQuarters; ++quarter) {
    const uint64_t bits = (summary.fingerprint >> (quarter * kQuarterBits)) & 0xffff;
    Put(tail, at++, static_cast<double>(bits) / factor);
  }
  for (size_t i = 0; i < summary.used.size(); ++i) {
    Put(tail, PlaceOf(ranks) + i, (summary.used[i] ? 1 : 0) / factor);
  }
}

StepSummaries ReadTail(const Buffer& tail, int ranks, size_t parameters) {
  StepSummaries summaries;
  summaries.weight = GetWeight(tail);
  summaries.uneven = GetWord(tail, kUneven) != 0;
  for (int rank = 0; rank < ranks; ++rank) {
    StepSummaries::Rank& one = summaries.ranks.emplace_back();
    size_t at = PlaceOf(rank);
    const int64_t bad = GetWord(tail, at++);
    if (bad > 0) one.not_finite = static_cast<size_t>(bad - 1);
    one.step = GetWord(tail, at++);
    for (size_t quarter = 0; quarter < kQuarters; ++quarter) {
      one.fingerprint |= (static_cast<uint64_t>(GetWord(tail, at++)) & 0xffff)
                         << (quarter * kQuarterBits);
    }
  }
  for (size_t i = 0; i < parameters; ++i) {
    summaries.used.push_back(GetWord(tail, PlaceOf(ranks) + i) > 0);
  }
  return summaries;
}

Status CheckSameStep(const StepSummaries& summaries, int64_t step) {
  const int64_t mine = step % kMaxTailWord;
  std::vector<std::string> others;
  for (size_t rank = 0; rank < summaries.ranks.size(); ++rank) {
    const int64_t theirs = summaries.ranks[rank].step;
    if (theirs == mine) continue;
    others.push_back(absl::StrCat("rank ", rank, " is in step ", step - mine + theirs));
  }
  if (others.empty()) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("the ranks reduced gradients of different steps: here step ", step, ", but ",
                   absl::StrJoin(others, ", ")));
}

std::vector<int> Drifted(const StepSummaries& summaries) {
  std::vector<int> ranks;
  for (size_t rank = 1; rank < summaries.ranks.size(); ++rank) {
    if (summaries.ranks[rank].fingerprint != summaries.ranks[0].fingerprint) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

}  // namespace cadre::reduce
