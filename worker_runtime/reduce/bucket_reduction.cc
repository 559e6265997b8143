#include "worker_runtime/reduce/bucket_reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/reduce/bucket.h"
#include "worker_runtime/reduce/element_scaling.h"

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
    // A rank alone is its own average, whatever its weight: nobody divides by the sum of weights.
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

}  // namespace cadre::reduce
