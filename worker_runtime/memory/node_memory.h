// Checkpoints in a node's memory: what both kinds have in common (the thread that copies, the slots
// that it copies to, and the directory to which states may be spilled), and ReplicatedMemory, the
// kind whose state is the same on all ranks. The other kind is rank_memory.h.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_NODE_MEMORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_NODE_MEMORY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "absl/synchronization/notification.h"
#include "cadre/communicator.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/spill.h"

namespace cadre::memory {

// Returns text such as "ranks 1, 3", the ranks that are not in the call. The text is empty if no
// rank is absent, or if a lower rank is in the call, because that rank reports them.
std::string AbsentRanks(Worker& worker, const std::string& call);

struct AbsenceNoticeOptions {
  std::chrono::milliseconds first = std::chrono::seconds(5);
  std::chrono::milliseconds every = std::chrono::minutes(1);
  // This is called on the notice's own thread.
  std::function<void(const std::string& absent)> say;
};

// Reports which ranks have not yet entered a call that all ranks make, while this rank waits in it.
// This rank counts as in the call named `call` from construction to destruction. The name must
// differ for each call. If the store fails, nothing is reported. `worker` must outlive this object.
class AbsenceNotice {
 public:
  AbsenceNotice(Worker& worker, const std::string& call, AbsenceNoticeOptions options);
  ~AbsenceNotice();
  AbsenceNotice(const AbsenceNotice&) = delete;
  AbsenceNotice& operator=(const AbsenceNotice&) = delete;

 private:
  void Watch();

  Worker& worker_;
  const std::string call_;
  const AbsenceNoticeOptions options_;
  // The destructor notifies the thread with this.
  absl::Notification over_;
  std::thread watching_;
};

// The worker must outlive this object. Derived classes must call Wait() in their destructor,
// because the copying thread calls their Committed().
class NodeMemory : public MemoryCheckpoint {
 public:
  Status Save(int64_t step, Span<const StatePart> parts) final;
  Status Wait() final;
  Status Spill(const std::string& directory, std::chrono::nanoseconds every) final;
  Status WaitForPartner() override { return OkStatus(); }
  Status Write(Span<const StatePart> parts) final;
  Status Commit(int64_t step) final;
  Result<std::optional<SavedState>> Latest() final;
  Result<std::optional<bool>> SavedReplicated() final;

 protected:
  // What this rank keeps: `slots` states called `name` in its directory in memory. In the spill
  // directory they are those of rank `rank` of `ranks`.
  struct Kept {
    std::string name;
    int slots = 0;
    int rank = 0;
    int ranks = 0;
    // This rank writes the states for its node.
    bool writes = true;
    // This rank writes them to the spill directory.
    bool spills = true;
  };
  NodeMemory(Worker& worker, const MemoryCheckpointOptions& options, Kept kept);

  static constexpr int64_t kNoStep = -1;
  // The step on which all ranks agree (kNoStep if there is none) and the file in which this rank
  // finds its state of that step.
  struct Found {
    int64_t step = kNoStep;
    std::string path;
  };
  // Collective. Looks in the nodes' memory and copies the state to the nodes that lack it.
  virtual Result<Found> Find(Communicator& communicator) = 0;
  // Called before a slot is overwritten; waits until that is allowed.
  virtual void AwaitRoom() {}
  // Called when this rank's `count`-th state is complete.
  virtual void Committed(int /*count*/, const SavedStep& /*saved*/) {}

  const MemoryCheckpointOptions& options() const { return options_; }
  const std::string& directory() const { return options_.directory; }
  const Kept& kept() const { return kept_; }
  Worker& worker() { return worker_; }
  MemorySlots& slots() { return *slots_; }
  // Commits what was written to slots() since Begin(), as saved in `generation`.
  Status CommitToSlots(int64_t step, uint64_t generation);

 private:
  // Connects all ranks. Reports on standard error which ranks have not called Latest() yet.
  Result<std::unique_ptr<Communicator>> ConnectAll();
  // Loads the state from the spill directory. Used if no node's memory holds one.
  Result<Found> FindSpilled(Communicator& communicator);
  // Collective. Returns the newest state of either kind, saved by any number of ranks.
  struct NewestState {
    int64_t step = kNoStep;
    bool replicated = false;
    int ranks = 0;
  };
  Result<NewestState> FindNewest(Communicator& communicator);
  // Called when there is no state to resume from. Fails if one was saved as the other kind
  // (replicated or not), and warns if it is of another number of ranks: starting over silently
  // would lose it.
  Status CheckNothingIsLost(Communicator& communicator);
  // Collective. Returns the minimum of the ranks' values.
  Result<int64_t> MinimumOverRanks(Communicator& communicator, int64_t own);
  // Collective. Returns the problem of the lowest rank that has one; that rank reports it on
  // standard error. The text is empty if no rank has one.
  Result<std::string> FirstProblem(Communicator& communicator, const Status& own);

  Worker& worker_;
  const MemoryCheckpointOptions options_;
  const Kept kept_;
  std::optional<MemorySlots> slots_;
  std::unique_ptr<memory::Spill> spill_;
  int committed_ = 0;
  int latest_calls_ = 0;
  std::optional<MappedFile> read_;
  // Writes copied_, which is read once it has been joined.
  std::thread copying_;
  Status copied_;
};

// Identifies a state. The same step saved by another generation is another state. Ranks exchange
// this struct as is.
struct Replica {
  int64_t generation = -1;
  int64_t step = -1;

  bool operator==(const Replica& other) const {
    return generation == other.generation && step == other.step;
  }
  // Returns whether this state is older. The later generation is newer whatever its step: steps of
  // an earlier generation from which it did not resume are not part of its history.
  bool operator<(const Replica& other) const {
    return std::tie(generation, step) < std::tie(other.generation, other.step);
  }
};
inline constexpr size_t kReplicaFields = sizeof(Replica) / sizeof(int64_t);

// Checkpoints of a state that is the same on all ranks, as in data parallelism. The first rank of
// each node keeps it for its node.
class ReplicatedMemory : public NodeMemory {
 public:
  ReplicatedMemory(Worker& worker, const MemoryCheckpointOptions& options);
  ~ReplicatedMemory() override { (void)Wait(); }

 protected:
  // Finds the newest state of any node. The latest generation that saved one decides, even if
  // earlier generations reached higher steps.
  Result<Found> Find(Communicator& communicator) override;

 private:
  // Copies the state from rank `from`, the first that has it, to all nodes that lack it.
  Status Share(Communicator& communicator, const Replica& replica, int from);
  Status Broadcast(Communicator& communicator, const Replica& replica, int from);
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_NODE_MEMORY_H_
