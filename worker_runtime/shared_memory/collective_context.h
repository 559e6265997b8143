// The state that collectives over shared memory work on, and the form they have: steps between
// barriers. Each step does all that can be done before the ranks have to wait for each other; how
// to wait is up to the caller.
//
// Steps have, in the order in which they are called:
//   void Begin(CollectiveContext&)                      before the first barrier
//   Result<bool> Next(CollectiveContext&)       after each; true: it was the last
// They can be moved between a step and the next.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_CONTEXT_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "worker_runtime/shared_memory/allocations.h"
#include "worker_runtime/shared_memory/rank_barrier.h"
#include "worker_runtime/shared_memory/reduce_kernels.h"
#include "worker_runtime/shared_memory/segment_layout.h"

namespace cadre::shared_memory {

// Where the ranks' buffers of one operation lie.
enum class BufferMemory { kShared, kMixed, kPrivate };

// The operation that all ranks' control blocks describe together; kept until one of them changes.
struct Agreement {
  // This rank's control block has not changed since.
  bool is_current = false;
  // Of the others' control blocks, in the order of RankBarrier::others().
  std::vector<uint32_t> versions;
  // How many agreements there have been.
  uint64_t number = 0;
  BufferMemory memory = BufferMemory::kPrivate;
  // Every rank's; `is_scaled`: not all are 1.
  std::vector<double> factors;
  bool is_scaled = false;

  // As ElementReduction takes them.
  const double* scaling() const { return is_scaled ? factors.data() : nullptr; }
};

// This rank's part of a reduction of shared buffers, as the agreement of that number asks for it,
// and the call that it came from.
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
  // The allocation used last.
  Allocation allocation;
  // Staged pieces so far: which half is next. A half that was staged two pieces ago has been read
  // by everybody, because all have passed a barrier of the piece between.
  uint64_t pieces = 0;
  Agreement agreement;
  InPlaceReduction in_place;

  int rank() const { return barrier->rank(); }
  int size() const { return barrier->size(); }
  // Where `rank` stages the next piece.
  char* Staging(int rank) const { return StagingOf(*(*segments)[rank], pieces); }
};

// Writes into this rank's control block what it is about to do, and where the `bytes` at `shared`
// lie if all ranks can reach them: then true, and context.allocation is where.
bool Publish(CollectiveContext& context, const CollectiveCall& call, double factor, char* shared,
             size_t bytes);

// After the first barrier, where all published shared memory alike: these bytes of `rank`.
char* SharedOf(const CollectiveContext& context, int rank, size_t bytes);

// After the first barrier: context.agreement is that of this operation. INVALID_ARGUMENT when ranks
// made different calls; names two of them. All ranks see the same calls, so all of them give
// up together.
Status Agree(CollectiveContext& context);

// After the first barrier: whether the last agreement still holds.
inline bool StillAgree(const CollectiveContext& context) {
  if (!context.agreement.is_current) return false;
  const uint32_t* version = context.agreement.versions.data();
  for (const ControlBlock* other : context.barrier->others()) {
    if (other->version != *version++) return false;
  }
  return true;
}

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_CONTEXT_H_
