// What collectives over shared memory work on, and the form they have: steps between meetings. Each
// step does what can be done until all ranks have to come together again; who waits, and how, is
// the caller's.
//
// Steps have: bool/void in this order:
//   void Begin(Ground&)                      before the first meeting
//   absl::StatusOr<bool> Next(Ground&)       after each; true: it was the last
// They can be moved between a step and the next.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_CONTEXT_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/shared_memory/rank_barrier.h"
#include "worker_runtime/shared_memory/reduce_kernels.h"
#include "worker_runtime/shared_memory/segment_layout.h"

namespace cadre::shared_memory {

// Where the ranks' buffers of one operation lie.
enum class Places { kShared, kMixed, kPrivate };

// What the ranks' lines say together, and what follows from it: kept until one of them changes.
struct Agreement {
  // This rank's line has not changed since.
  bool is_current = false;
  // Which editions of the others' lines these are, as Meeting::others() has them.
  std::vector<uint32_t> editions;
  // How many agreements there have been.
  uint64_t number = 0;
  Places places = Places::kPrivate;
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
struct Ground {
  Meeting* meeting = nullptr;
  const Segments* homes = nullptr;
  const Registry* registry = nullptr;
  // The allocation used last.
  Allocation allocation;
  // Staged pieces so far: which half is next. A half that was staged two pieces ago has been read
  // by everybody, because all have come to a meeting of the piece between.
  uint64_t pieces = 0;
  Agreement agreement;
  InPlaceReduction in_place;

  int rank() const { return meeting->rank(); }
  int size() const { return meeting->size(); }
  // Where `rank` stages the next piece.
  char* Staging(int rank) const { return StagingOf(*(*homes)[rank], pieces); }
};

// Writes into this rank's line what it is about to do, and where the `bytes` at `shared` lie if all
// ranks can reach them: then true, and ground.allocation is where.
bool Publish(Ground& ground, const CollectiveWord& word, double factor, char* shared, size_t bytes);

// After the first meeting: ground.agreement is that of this operation. INVALID_ARGUMENT when ranks
// came with different words; names two of them. All ranks see the same words, so all of them give
// up together.
absl::Status Agree(Ground& ground);

// After the first meeting: whether the last agreement still holds.
inline bool StillAgree(const Ground& ground) {
  if (!ground.agreement.is_current) return false;
  const uint32_t* edition = ground.agreement.editions.data();
  for (const RankLine* other : ground.meeting->others()) {
    if (other->edition != *edition++) return false;
  }
  return true;
}

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_COLLECTIVE_CONTEXT_H_
