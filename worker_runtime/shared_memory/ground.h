// What collectives over shared memory work on, and the form they have: steps between meetings. Each
// step does what can be done until all ranks have to come together again; who waits, and how, is
// the caller's.
//
// Steps have: bool/void in this order:
//   void Begin(Ground&)                      before the first meeting
//   absl::StatusOr<bool> Next(Ground&)       after each; true: it was the last
// They can be moved between a step and the next.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_GROUND_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_GROUND_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/shared_memory/meeting.h"
#include "worker_runtime/shared_memory/staging.h"

namespace cadre {

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

  int rank() const { return meeting->rank(); }
  int size() const { return meeting->size(); }
  // Where `rank` stages the next piece.
  char* Staging(int rank) const { return StagingOf(*(*homes)[rank], pieces); }
};

// Writes into this rank's line what it is about to do, and where `shared` lies if all ranks can
// reach it: then true, and ground.allocation is where.
bool Publish(Ground& ground, const CollectiveWord& word, double factor, const Buffer& shared);

// After a meeting: INVALID_ARGUMENT when ranks came with different words; names two of them. All
// ranks see the same words, so all of them give up together.
absl::Status CheckSame(const Ground& ground);

// Where the ranks' buffers of the current operation lie.
enum class Places { kShared, kMixed, kPrivate };
Places WherePublished(const Ground& ground);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_GROUND_H_
