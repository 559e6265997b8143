// Reductions over shared memory: what lies in an allocation of all ranks is reduced where it is,
// each rank computing its slice; everything else goes through the staging halves.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "worker_runtime/communicator.h"
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
  void Begin(Ground& ground) {
    if (!Repeats(ground)) return BeginAnew(ground);
    ground.meeting->BeginOperation();
    is_shared_ = true;
  }
  absl::StatusOr<bool> Next(Ground& ground) {
    if (state_ == State::kInPlace) return true;
    if (state_ != State::kPublished || !IsPrepared(ground) || !StillAgree(ground)) {
      return NextAnew(ground);
    }
    ReduceElements(ground.in_place.elements);
    state_ = State::kInPlace;
    return false;
  }

 private:
  enum class State { kPublished, kStaged, kReduced, kInPlace };

  static bool IsPrepared(const Ground& ground) {
    return ground.in_place.agreement == ground.agreement.number;
  }
  // Whether this is the call that ground.in_place came from, so that this rank's line says it.
  bool Repeats(const Ground& ground) const {
    const InPlaceReduction& last = ground.in_place;
    return IsPrepared(ground) && ground.agreement.is_current && last.data == buffer_.data &&
           last.count == buffer_.count && last.elements.type == buffer_.type &&
           last.elements.op == reduction_.op && last.factor == reduction_.premultiply &&
           last.root == root_ && ground.registry->IsUnchanged(ground.allocation);
  }
  void BeginAnew(Ground& ground);
  absl::StatusOr<bool> NextAnew(Ground& ground);
  absl::StatusOr<bool> Choose(Ground& ground);
  void ReduceInPlace(Ground& ground);
  void PrepareInPlace(Ground& ground) const;
  void ReduceStaged(Ground& ground);
  void CopyIn(Ground& ground);
  bool CopyOut(Ground& ground);
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

class ReduceScatterSteps {
 public:
  ReduceScatterSteps(const Buffer& input, const Buffer& output, const Reduction& reduction);

  void Begin(Ground& ground);
  absl::StatusOr<bool> Next(Ground& ground);

 private:
  // Of a rank's part, as many as may be staged for each rank at a time.
  size_t PieceCount(const Ground& ground) const;
  void CopyIn(Ground& ground);
  void Reduce(Ground& ground, bool in_place);

  Buffer input_;
  Buffer output_;
  Reduction reduction_;
  size_t element_;
  size_t done_ = 0;  // elements of the output
  bool is_shared_ = false;
  bool compared_ = false;
  bool last_ = false;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_
