// Reductions over shared memory: what lies in an allocation of all ranks is reduced where it is,
// each rank computing its slice; everything else goes through the staging halves.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_

#include <cstddef>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "worker_runtime/shared_memory/collective_context.h"
#include "worker_runtime/shared_memory/reduce_kernels.h"

namespace cadre::shared_memory {

// All-reduce, and reduce to one rank.
class ReduceSteps {
 public:
  // `root` -1: to all.
  ReduceSteps(const Buffer& buffer, const Reduction& reduction, int root)
      : buffer_(buffer), reduction_(reduction), root_(root) {}

  // Inline is what remains of a call that all ranks make as they made the one before.
  void Begin(CollectiveContext& context) {
    if (!Repeats(context)) return BeginAnew(context);
    context.barrier->BeginOperation();
    is_shared_ = true;
  }
  Result<bool> Next(CollectiveContext& context) {
    if (state_ == State::kInPlace) return true;
    if (state_ != State::kPublished || !IsPrepared(context) || !StillAgree(context)) {
      return NextAnew(context);
    }
    ReduceElements(context.in_place.elements);
    state_ = State::kInPlace;
    return false;
  }

 private:
  enum class State { kPublished, kStaged, kReduced, kInPlace };

  static bool IsPrepared(const CollectiveContext& context) {
    return context.in_place.agreement == context.agreement.number;
  }
  // Whether this is the call that context.in_place came from, so that this rank's control block
  // says it.
  bool Repeats(const CollectiveContext& context) const {
    const InPlaceReduction& last = context.in_place;
    return IsPrepared(context) && context.agreement.is_current && last.data == buffer_.data &&
           last.count == buffer_.count && last.elements.type == buffer_.type &&
           last.elements.op == reduction_.op && last.factor == reduction_.premultiply &&
           last.root == root_ && context.allocations->IsUnchanged(context.allocation);
  }
  void BeginAnew(CollectiveContext& context);
  Result<bool> NextAnew(CollectiveContext& context);
  Result<bool> Choose(CollectiveContext& context);
  void ReduceInPlace(CollectiveContext& context);
  void PrepareInPlace(CollectiveContext& context) const;
  void ReduceStaged(CollectiveContext& context);
  void CopyIn(CollectiveContext& context);
  bool CopyOut(CollectiveContext& context);
  size_t PieceCount() const;
  size_t ElementBytes() const { return SizeOf(buffer_.type); }
  char* At(size_t element) const {
    return static_cast<char*>(buffer_.data) + element * ElementBytes();
  }

  Buffer buffer_;
  Reduction reduction_;
  int root_;
  size_t done_ = 0;  // elements
  bool is_shared_ = false;
  State state_ = State::kPublished;
};

// Reduce-scatter of equal and of varying parts.
class ReduceScatterSteps {
 public:
  ReduceScatterSteps(Collective kind, const Buffer& input, const Buffer& output,
                     Span<const size_t> counts, const Reduction& reduction);

  void Begin(CollectiveContext& context);
  Result<bool> Next(CollectiveContext& context);

 private:
  size_t Count(int rank) const { return begins_[rank + 1] - begins_[rank]; }
  // Of the longest part, as many as may be staged for each rank at a time.
  size_t PieceCount(const CollectiveContext& context) const;
  // Of them, those that `rank`'s part has.
  size_t PieceCountOf(const CollectiveContext& context, int rank) const;
  void CopyIn(CollectiveContext& context);
  void Reduce(CollectiveContext& context, bool in_place);

  CollectiveCall call_;
  Buffer input_;
  Buffer output_;
  Reduction reduction_;
  size_t element_;
  std::vector<size_t> begins_ = {0};  // of the ranks' parts, in elements
  size_t longest_ = 0;
  size_t done_ = 0;  // elements of each part
  bool is_shared_ = false;
  bool compared_ = false;
  bool last_ = false;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_
