// The memory in which gradients live and are reduced: buckets, packed without gaps, and behind the
// last bucket's gradients the tail (step_tail.h).
#ifndef CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_BUCKETS_H_
#define CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_BUCKETS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "worker_runtime/reduce/bucket.h"

namespace cadre::reduce {

// Not thread safe; nothing changes after Allocate().
class GradientBuckets {
 public:
  GradientBuckets() = default;

  // Collective: memory that the communicator reduces without copies, zeroed. All ranks give the
  // same shapes and the same assignment.
  static Result<GradientBuckets> Allocate(Communicator& communicator,
                                          Span<const Parameter> parameters,
                                          std::vector<Bucket> assignment, size_t tail_count);

  size_t size() const { return buckets_.size(); }
  const std::vector<Bucket>& assignment() const { return assignment_; }
  size_t bytes() const { return bytes_; }

  // Where gradient i lives, in which bucket, and what keeps it alive.
  const Buffer& Gradient(size_t i) const { return places_[i].buffer; }
  size_t BucketOf(size_t i) const { return places_[i].bucket; }
  const std::shared_ptr<void>& Storage(size_t i) const { return buckets_[BucketOf(i)].memory; }

  // The gradients of a bucket, for a hook.
  BucketView View(size_t bucket) const;
  // The buffer that is reduced when there is no hook: the gradients, and behind those of the last
  // bucket the tail.
  Buffer WithTail(size_t bucket) const;
  const Buffer& tail() const { return tail_; }

  // Gradients as they are in `other`, which has the same parameters.
  void CopyFrom(const GradientBuckets& other);
  // "bucket 2 of 5 (fc.weight, fc.bias)".
  std::string Describe(size_t bucket, Span<const Parameter> parameters) const;

 private:
  struct Memory {
    std::shared_ptr<void> memory;
    size_t count = 0;
    DataType type = DataType::kFloat32;
    std::vector<GradientView> gradients;
  };
  struct Place {
    size_t bucket = 0;
    Buffer buffer;
  };

  std::vector<Bucket> assignment_;
  std::vector<Memory> buckets_;
  std::vector<Place> places_;
  Buffer tail_;
  size_t bytes_ = 0;
};

// At most ten, and how many more.
std::string JoinNames(std::vector<std::string> names);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_BUCKETS_H_
