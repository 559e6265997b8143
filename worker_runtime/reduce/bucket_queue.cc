#include "worker_runtime/reduce/bucket_queue.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace cadre::reduce {

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

}  // namespace cadre::reduce
