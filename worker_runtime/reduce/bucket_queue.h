// The buckets of the step under way. One is started when all of its gradients are complete and all
// before it have been started, so that all ranks start them in the same order whatever the order of
// their backward passes.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_BUCKET_QUEUE_H_
#define CADRE_WORKER_RUNTIME_REDUCE_BUCKET_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "cadre/span.h"
#include "cadre/work.h"
#include "worker_runtime/reduce/bucket.h"

namespace cadre::reduce {

struct StartedBucket {
  // Null: there is nothing to wait for.
  std::shared_ptr<Work> work;
  // Of its all-reduce in the progress page.
  uint64_t sequence = 0;
};

// One thread at a time, but for started(), once all are.
class BucketQueue {
 public:
  // A step begins with none of them started, and no gradient complete.
  void Begin(Span<const Bucket> buckets);
  // One more of the bucket's gradients is complete, or will not be in this step.
  void CompleteOne(size_t bucket);
  // Starts those that can be.
  void StartNext(absl::FunctionRef<StartedBucket(size_t bucket)> start);

  size_t size() const { return states_.size(); }
  const StartedBucket& started(size_t bucket) const { return states_[bucket].started; }
  bool any_runs() const;
  // Until none runs, at most so long for each.
  void Wait(std::chrono::nanoseconds timeout);

 private:
  struct State {
    size_t pending = 0;
    StartedBucket started;
  };

  std::vector<State> states_;
  size_t next_ = 0;
};

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_BUCKET_QUEUE_H_
