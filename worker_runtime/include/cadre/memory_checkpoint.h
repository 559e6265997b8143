// A training job's state in its node's memory, where it outlives the workers. It is cheap enough to
// save in every step, since it is copied while training continues. CheckFreq (FAST 2021) calls it
// snapshot and persist; Gemini (SOSP 2023) keeps checkpoints in memory.
//
//   CADRE_ASSIGN_OR_RETURN(auto memory, MemoryCheckpoint::Open(*worker, {}));
//   CADRE_ASSIGN_OR_RETURN(auto latest, memory->Latest());  // on all ranks
//   if (latest) Load(latest->step, latest->bytes);
//   for (...) {
//     Forward();
//     Backward();
//     CADRE_RETURN_IF_ERROR(memory->Wait());  // for the last copy, usually done
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
  // All ranks have the same state, as in data parallelism: the first rank of each node keeps two
  // copies for its node, and a node that has none gets it from another. Otherwise each rank keeps
  // its own in three copies, so that all have one step in common whenever one of them dies.
  bool replicated = false;
  // In a job of several nodes each rank's own state is also sent to a rank of the next node, which
  // keeps two copies, so that a lost node costs one step. It is sent in the background, but Save()
  // waits until the last state has arrived, so that all ranks have a step in common whichever node
  // is lost.
  bool partner = true;
  // Limits the waits of Latest().
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // An in-memory folder owned by this user, the same for all workers of a node, which remains when
  // they exit. Empty: the folder of Cadre's agent (CADRE_CHECKPOINT_MEMORY), which is deleted with
  // the agent.
  std::string directory;
};

// `size` bytes owned by the caller.
struct StatePart {
  const void* data = nullptr;
  size_t size = 0;
};

struct SavedState {
  int64_t step = 0;
  // The parts, one after the other. Copy them before training continues: later states overwrite
  // this memory.
  Span<const char> bytes;
};

// Used by one thread at a time.
class MemoryCheckpoint {
 public:
  // `worker` must outlive it. FAILED_PRECONDITION: neither the options nor an agent gave a folder.
  static Result<std::unique_ptr<MemoryCheckpoint>> Open(Worker& worker,
                                                        const MemoryCheckpointOptions& options);
  // As Wait().
  virtual ~MemoryCheckpoint() = default;

  // Also writes states to a directory that all nodes share, at most once every `every`, in the
  // background, and keeps the last two. Latest() reads the newest complete one when the nodes that
  // had a state in memory are gone. Needs memory for one more state. All ranks call it before the
  // first Save() and Latest(). Fails if the directory cannot be written to; a later write error is
  // returned by Wait(), once.
  virtual Status Spill(const std::string& directory, std::chrono::nanoseconds every) = 0;

  // Called by all ranks in the same steps. Starts copying on a background thread; the parts must
  // not be freed or changed until Wait() has returned. Waits for a copy that is still running and
  // returns its error. In a replicated checkpoint only the first rank of a node copies. Saving a
  // step that is not above the saved ones replaces the saved states from that step on.
  virtual Status Save(int64_t step, Span<const StatePart> parts) = 0;
  // Waits until the copy that Save() started is complete; OK if there is none. RESOURCE_EXHAUSTED:
  // the node's memory has no room for it; earlier states are kept.
  virtual Status Wait() = 0;

  // Waits until the partner node has the last committed state, as Save() and Write() do, too. A
  // failure of its copies is returned once, and training continues without them. UNAVAILABLE,
  // DEADLINE_EXCEEDED: the partner is gone, until the next generation. RESOURCE_EXHAUSTED: it has
  // no room for this state.
  virtual Status WaitForPartner() = 0;

  // Save() without its thread, in two halves, for callers that have a thread of their own. A state
  // that was written but not committed is never visible.
  virtual Status Write(Span<const StatePart> parts) = 0;
  virtual Status Commit(int64_t step) = 0;

  // Called by all ranks, which get the same step: the newest one for which every rank's state is on
  // some surviving node. Ranks that lack their state get it from there. nullopt: there is none, or
  // it was saved in memory, not replicated, by another number of ranks, in which case a line on
  // standard error says so. FAILED_PRECONDITION: the state in the directory of Spill() is of
  // another number of ranks, or the newest state is replicated and this object is not, or the other
  // way round.
  virtual Result<std::optional<SavedState>> Latest() = 0;

  // Called by all ranks, which get the same answer: whether the newest state of any rank is
  // replicated; nullopt: there is none. For callers that do not know how their states were saved.
  virtual Result<std::optional<bool>> SavedReplicated() = 0;
};

}  // namespace cadre

#endif  // CADRE_MEMORY_CHECKPOINT_H_
