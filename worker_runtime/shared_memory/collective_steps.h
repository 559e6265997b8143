// Collectives over shared memory, as steps between barriers: each step does everything that can be
// done before the ranks have to wait for each other. The caller decides how to wait.
//
// Steps have these functions, in the order in which they are called:
//   void Begin(CollectiveContext&)         before the first barrier
//   Result<bool> Next(CollectiveContext&)  after each; returns true if it was the last
// They can be moved between two calls.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_STEPS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/shared_memory/peers.h"
#include "worker_runtime/shared_memory/reduce_kernels.h"
#include "worker_runtime/shared_memory/segment.h"

namespace cadre::shared_memory {

// Whether the ranks' buffers of an operation lie in memory that all of them map.
enum class BufferMemory { kShared, kMixed, kPrivate };

// What all ranks' control blocks say together. It is kept until one of the blocks changes.
struct Agreement {
  // This rank's control block has not changed since the agreement.
  bool is_current = false;
  // The versions of the others' control blocks, in the order of RankBarrier::others().
  std::vector<uint32_t> versions;
  // The number of agreements so far.
  uint64_t number = 0;
  BufferMemory memory = BufferMemory::kPrivate;
  // The factor of each rank. `is_scaled` is true if any of them is not 1.
  std::vector<double> factors;
  bool is_scaled = false;

  // Returns the factors in the form of ElementReduction::factors.
  const double* scaling() const { return is_scaled ? factors.data() : nullptr; }
};

// This rank's part of a reduction of shared buffers, prepared for the agreement of that number, and
// the call that it was prepared for.
struct InPlaceReduction {
  uint64_t agreement = 0;
  const void* data = nullptr;
  size_t count = 0;
  double factor = 1;
  int root = -1;
  std::vector<char*> slices;
  ElementReduction elements;
};

// One thread at a time.
struct CollectiveContext {
  RankBarrier* barrier = nullptr;
  const Segments* segments = nullptr;
  const Allocations* allocations = nullptr;
  // The allocation that was used last.
  Allocation allocation;
  // The number of staged pieces so far, which selects the next half. A half that was staged two
  // pieces ago has been read by all ranks, because all have passed a barrier of the piece in
  // between.
  uint64_t pieces = 0;
  Agreement agreement;
  InPlaceReduction in_place;

  int rank() const { return barrier->rank(); }
  int size() const { return barrier->size(); }
  // Returns where `rank` stages the next piece.
  char* Staging(int rank) const { return StagingOf(*(*segments)[rank], pieces); }
};

// Writes the call that this rank is about to make into its control block, and where the `bytes` at
// `shared` lie if all ranks can access them. In that case it returns true and context.allocation is
// set.
bool Publish(CollectiveContext& context, const CollectiveCall& call, double factor, char* shared,
             size_t bytes);

// Returns these bytes of `rank`. Valid after the first barrier if all published shared memory
// alike.
char* SharedOf(const CollectiveContext& context, int rank, size_t bytes);

// Called after the first barrier; makes context.agreement that of this operation. INVALID_ARGUMENT:
// the ranks made different calls; the text names two of them. All ranks see the same calls, so all
// of them fail together.
Status Agree(CollectiveContext& context);

// Called after the first barrier. Returns true if the last agreement still holds.
inline bool StillAgree(const CollectiveContext& context) {
  if (!context.agreement.is_current) return false;
  const uint32_t* version = context.agreement.versions.data();
  for (const ControlBlock* other : context.barrier->others()) {
    if (other->version != *version++) return false;
  }
  return true;
}

// Collectives over shared memory that only copy: some ranks stage a piece and all read it. After
// the last piece there is one more barrier, so that no control block changes while another rank
// still compares it. A buffer that lies in an allocation of all ranks is copied from there.

// Broadcast, and barrier as a broadcast of nothing.
class BroadcastSteps {
 public:
  BroadcastSteps(const Buffer& buffer, int root);
  static BroadcastSteps Barrier();

  void Begin(CollectiveContext& context);
  Result<bool> Next(CollectiveContext& context);

 private:
  size_t PieceBytes() const;
  void CopyIn(CollectiveContext& context);

  CollectiveCall call_;
  Buffer buffer_;
  size_t bytes_;
  int root_;
  size_t done_ = 0;  // bytes
  bool is_shared_ = false;
  bool compared_ = false;
  bool last_ = false;
};

// All-gather of equal or varying parts.
class GatherSteps {
 public:
  GatherSteps(Collective kind, const Buffer& input, const Buffer& output,
              Span<const size_t> counts);

  void Begin(CollectiveContext& context);
  Result<bool> Next(CollectiveContext& context);

 private:
  // Returns the bytes that `rank` contributes to this piece.
  size_t PieceBytes(int rank) const;
  void CopyIn(CollectiveContext& context);
  void CopyOut(CollectiveContext& context);

  CollectiveCall call_;
  Buffer input_;
  Buffer output_;
  std::vector<size_t> offsets_;  // where each rank's part begins, in bytes, and the end
  size_t longest_ = 0;           // bytes
  size_t done_ = 0;              // bytes of the longest part
  bool compared_ = false;
  bool last_ = false;
};

// Reductions over shared memory. Buffers in an allocation of all ranks are reduced in place, each
// rank computing its slice; all others go through the staging halves.

// All-reduce, and reduce to one rank.
class ReduceSteps {
 public:
  // A `root` of -1 means all ranks.
  ReduceSteps(const Buffer& buffer, const Reduction& reduction, int root)
      : buffer_(buffer), reduction_(reduction), root_(root) {}

  // The path of a call that all ranks repeat unchanged is inline.
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
  // Returns true if context.in_place was prepared for the same call, so that this rank's control
  // block already describes it.
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

// Reduce-scatter of equal or varying parts.
class ReduceScatterSteps {
 public:
  ReduceScatterSteps(Collective kind, const Buffer& input, const Buffer& output,
                     Span<const size_t> counts, const Reduction& reduction);

  void Begin(CollectiveContext& context);
  Result<bool> Next(CollectiveContext& context);

 private:
  size_t Count(int rank) const { return begins_[rank + 1] - begins_[rank]; }
  // The number of elements per rank in this piece: those left of the longest part, at most what can
  // be staged.
  size_t PieceCount(const CollectiveContext& context) const;
  // The number of these elements that `rank`'s part has.
  size_t PieceCountOf(const CollectiveContext& context, int rank) const;
  void CopyIn(CollectiveContext& context);
  void Reduce(CollectiveContext& context, bool in_place);

  CollectiveCall call_;
  Buffer input_;
  Buffer output_;
  Reduction reduction_;
  size_t element_;
  std::vector<size_t> begins_ = {0};  // where the ranks' parts begin, in elements
  size_t longest_ = 0;
  size_t done_ = 0;  // elements of each part
  bool is_shared_ = false;
  bool compared_ = false;
  bool last_ = false;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_STEPS_H_
