// A training's state in the memory of its node, where it outlives the workers: cheap enough to be
// saved in every step, since it is copied while training goes on. CheckFreq (FAST 2021) calls it
// snapshot and persist; Gemini (SOSP 2023) keeps checkpoints in memory.
//
//   CADRE_ASSIGN_OR_RETURN(auto memory, MemoryCheckpoint::Open(*worker, {}));
//   CADRE_ASSIGN_OR_RETURN(auto latest, memory->Latest());  // on all ranks
//   if (latest) Load(latest->step, latest->bytes);
//   for (...) {
//     Forward();
//     Backward();
//     CADRE_RETURN_IF_ERROR(memory->Wait());  // for the last copy: mostly it is done
//     optimizer.step();
//     CADRE_RETURN_IF_ERROR(memory->Save(step, parts));  // returns at once
//   }
#ifndef CADRE_MEMORY_CHECKPOINT_H_
#define CADRE_MEMORY_CHECKPOINT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

struct MemoryCheckpointOptions {
  // All ranks have the same state, as in data parallelism: the first rank of each node keeps it for
  // its node, twice, and a node that has none gets it from another. Else each rank keeps its own,
  // three times, so that all have one step in common whenever one of them dies.
  bool replicated = false;
  // In a job of several nodes each rank's own state is also sent to a rank of the next node, which
  // keeps it, twice: a node that is lost costs a step. Behind the training, but Save() waits until
  // the last state is there, so that all ranks have a step in common whichever node is lost.
  bool partner = true;
  // For what Latest() waits for.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // A folder of this user in memory, the same for all workers of a node, which stays when they end;
  // empty: that of Cadre's agent (CADRE_CHECKPOINT_MEMORY), which goes with the agent.
  std::string directory;
};

// `size` bytes of the caller's.
struct StatePart {
  const void* data = nullptr;
  size_t size = 0;
};

struct SavedState {
  int64_t step = 0;
  // The parts, one behind the other. To be copied before training goes on: they lie where later
  // states will.
  Span<const char> bytes;
};

// Used by one thread at a time.
class MemoryCheckpoint {
 public:
  // `worker` must outlive it. FAILED_PRECONDITION: no folder is given, and no agent gave one.
  static Result<std::unique_ptr<MemoryCheckpoint>> Open(Worker& worker,
                                                        const MemoryCheckpointOptions& options);
  // As Wait().
  virtual ~MemoryCheckpoint() = default;

  // Also writes states to a directory that all nodes share, at most once every `every`, behind the
  // training, and keeps the last two: Latest() takes the newest of which all is there when the
  // nodes that had one in memory are gone. One more state is kept in memory. On all ranks, before
  // the first Save() and Latest(). Says what is wrong where the directory cannot be written to;
  // what goes wrong later, Wait() says once.
  virtual Status Spill(const std::string& directory, std::chrono::nanoseconds every) = 0;

  // Called by all ranks in the same steps. Begins to copy on a thread of its own; the parts must
  // stay and must not change until Wait() has returned. Waits for a copy that still runs, and
  // returns what that failed with. In a replicated checkpoint only the first rank of a node copies.
  // A step that is not above those that were saved takes the place of those from it on.
  virtual Status Save(int64_t step, Span<const StatePart> parts) = 0;
  // Until the copy that Save() began is whole. OK where there is none.
  // RESOURCE_EXHAUSTED: the node's memory has no room for it; what was saved before stays.
  virtual Status Wait() = 0;

  // Until the partner node has what was committed last, as Save() and Write() wait, too. What went
  // wrong with its copies is said once, and training goes on without them. UNAVAILABLE,
  // DEADLINE_EXCEEDED: the partner is gone, until the next generation. RESOURCE_EXHAUSTED: it has
  // no room for this state.
  virtual Status WaitForPartner() = 0;

  // For those who have a thread already: Save() without its thread, in two halves. What was written
  // and is not committed is never seen.
  virtual Status Write(Span<const StatePart> parts) = 0;
  virtual Status Commit(int64_t step) = 0;

  // Called by all ranks, which get the same step: the newest of which every rank's state is on some
  // node that is left; those who have it not get it from there. nullopt: there is none, or another
  // number of ranks saved it in memory, and it is not replicated, which is said on standard error.
  // FAILED_PRECONDITION: what the directory of Spill() has is of another number of ranks; or the
  // newest state is a replicated one where this is not, or the other way round.
  virtual Result<std::optional<SavedState>> Latest() = 0;

  // Called by all ranks, which get the same: whether the newest state that any of them has is
  // replicated; nullopt: there is none. For who does not know how its states were saved.
  virtual Result<std::optional<bool>> SavedReplicated() = 0;
};

}  // namespace cadre

#endif  // CADRE_MEMORY_CHECKPOINT_H_
