// The memory in which gradients are stored and reduced: buckets, packed without gaps, and after the
// last bucket's gradients the tail (StepSummary in bucket_reduction.h). Also which gradients share
// a bucket, and in which order gradients become ready.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_BUCKETS_H_
#define CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_BUCKETS_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/result.h"
#include "cadre/span.h"

namespace cadre::reduce {

// The properties by which a gradient is assigned: only gradients of the same type and kind share a
// bucket.
struct GradientShape {
  size_t bytes = 0;
  DataType type = DataType::kFloat32;
  // -1: reduced by the reducer itself; otherwise Parameter::bucket_kind.
  int kind = -1;
};

// Indices into `gradients`.
using Bucket = std::vector<size_t>;

// Visits the gradients in `order` and closes a bucket as soon as it holds at least the limit, so a
// bucket may exceed its limit by one gradient. The first bucket of each type and kind has the first
// limit, and so on; the last limit applies to all that follow; without limits there is one bucket
// for each type and kind. Buckets are returned in the order in which they were closed, followed by
// those that never filled, by their first gradient. The same as PyTorch's
// compute_bucket_assignment_by_size.
std::vector<Bucket> AssignBuckets(Span<const GradientShape> gradients, Span<const size_t> limits,
                                  Span<const size_t> order);

// count - 1 ... 0: gradients become ready roughly in the reverse of the order in which a model
// registers its parameters.
std::vector<size_t> ReverseOrder(size_t count);

// Collective. Returns rank 0's `ready`, which has indices below `count`, followed by the gradients
// that did not become ready there, in descending order.
Result<std::vector<size_t>> AgreeOnReadyOrder(Communicator& communicator, Span<const size_t> ready,
                                              size_t count, std::chrono::nanoseconds timeout);

// Tracks which gradients became ready in a step, how often and in which order, and how often they
// should. With a static graph the first step for which this rank has data sets the expected counts
// for all later steps; otherwise each gradient becomes ready once. Pure.
//
// Used by one thread at a time.
class GradientReadiness {
 public:
  GradientReadiness(size_t gradients, bool static_graph)
      : counts_only_(static_graph),
        expected_(gradients, 1),
        times_ready_(gradients),
        in_order_(gradients),
        accumulated_(gradients) {}

  // Clears the counts of the previous step.
  void BeginStep();
  // Whether gradient i may become ready once more.
  bool MayMark(size_t i) const { return counts_only_ || times_ready_[i] < expected_[i]; }
  // Reports that gradient i exists and will be marked later. Its position in order() is set now.
  void Note(size_t i);
  // Reports that gradient i became ready; returns whether it is complete now.
  bool Mark(size_t i);
  // Always false in the first step of a static graph: a gradient may become ready again.
  bool IsComplete(size_t i) const {
    return !counts_only_ && times_ready_[i] > 0 && times_ready_[i] >= expected_[i];
  }
  bool IsMarked(size_t i) const { return times_ready_[i] > 0; }
  bool any() const { return any_; }
  // The order in which gradients became ready for the first time.
  const std::vector<size_t>& order() const { return order_; }
  // The gradients that became ready less often than expected; empty while that is not known.
  std::vector<size_t> Missing() const;
  // Ends the first step of a static graph, if this is it: its counts are expected from now on.
  void LearnGraph();

  // Gradient i became ready in a step that is not reduced; kept until ForgetAccumulated().
  void Accumulate(size_t i) { accumulated_[i] = true; }
  void ForgetAccumulated() { accumulated_.assign(accumulated_.size(), false); }
  // Whether gradient i holds a gradient.
  bool IsUsed(size_t i) const { return times_ready_[i] > 0 || accumulated_[i]; }

 private:
  // True until the first step of a static graph is over.
  bool counts_only_;
  std::vector<int> expected_;
  std::vector<int> times_ready_;
  bool any_ = false;
  std::vector<size_t> order_;
  std::vector<bool> in_order_;
  std::vector<bool> accumulated_;
};

// Not thread safe; nothing changes after Allocate().
class GradientBuckets {
 public:
  GradientBuckets() = default;

  // Collective: allocates zeroed memory that the communicator reduces without copies. All ranks
  // pass the same shapes and the same assignment.
  static Result<GradientBuckets> Allocate(Communicator& communicator,
                                          Span<const Parameter> parameters,
                                          std::vector<Bucket> assignment, size_t tail_count);

  size_t size() const { return buckets_.size(); }
  const std::vector<Bucket>& assignment() const { return assignment_; }
  size_t bytes() const { return bytes_; }

  // The memory of gradient i, its bucket, and the owner of the memory.
  const Buffer& Gradient(size_t i) const { return places_[i].buffer; }
  size_t BucketOf(size_t i) const { return places_[i].bucket; }
  const std::shared_ptr<void>& Storage(size_t i) const { return buckets_[BucketOf(i)].memory; }

  // The gradients of a bucket, for a hook.
  BucketView View(size_t bucket) const;
  // The buffer that is reduced without a hook: the gradients, followed by the tail for the last
  // bucket.
  Buffer WithTail(size_t bucket) const;
  const Buffer& tail() const { return tail_; }

  // Copies the gradients of `other`, which has the same parameters.
  void CopyFrom(const GradientBuckets& other);
  // For example "bucket 2 of 5 (fc.weight, fc.bias)".
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

// At most ten names, and the number of the others.
std::string JoinNames(std::vector<std::string> names);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_BUCKETS_H_
