// What both kinds of checkpoints in a node's memory share: the copy on a thread of its own, the
// slots that it goes to, and the directory that it may be spilled to.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_NODE_MEMORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_NODE_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "cadre/communicator.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/mapped_file.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/spill.h"

namespace cadre::memory {

// The worker must outlive it. Derived classes call Wait() when they are destroyed: the copy ends in
// their Committed().
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
  // The states that ranks save: this one keeps `slots` of those with that name, in its folder and,
  // as the `rank`-th of `ranks` different ones, in the directory.
  struct Kept {
    std::string name;
    int slots = 0;
    int rank = 0;
    int ranks = 0;
    // Whether this rank keeps them for its node, and spills them.
    bool writes = true;
    bool spills = true;
  };
  NodeMemory(Worker& worker, const MemoryCheckpointOptions& options, Kept kept);

  static constexpr int64_t kNoStep = -1;
  // The step on which all ranks agree, kNoStep where there is none, and the file in which this
  // rank finds its state of it.
  struct Found {
    int64_t step = kNoStep;
    std::string path;
  };
  // Collective: in the nodes' memory. Brings it to the nodes that lack it.
  virtual Result<Found> Find(Communicator& communicator) = 0;
  // Before a slot is written over.
  virtual void AwaitRoom() {}
  // This rank's `count`-th state is whole.
  virtual void Committed(int /*count*/, const SavedStep& /*saved*/) {}

  const MemoryCheckpointOptions& options() const { return options_; }
  const std::string& directory() const { return options_.directory; }
  const Kept& kept() const { return kept_; }
  Worker& worker() { return worker_; }
  MemorySlots& slots() { return *slots_; }
  // What is in slots() since their Begin(), as it was saved in that generation.
  Status CommitToSlots(int64_t step, uint64_t generation);

 private:
  // Says on standard error which ranks have not called Latest() as long as it waits for them.
  Result<std::unique_ptr<Communicator>> ConnectAll();
  // From the directory, where no node's memory has one.
  Result<Found> FindSpilled(Communicator& communicator);
  // Collective: the newest state of any kind, of any number of ranks.
  struct NewestState {
    int64_t step = kNoStep;
    bool replicated = false;
    int ranks = 0;
  };
  Result<NewestState> FindNewest(Communicator& communicator);
  // There is no state to go on from. To begin anew without a word beside one that was saved
  // otherwise would lose it.
  Status CheckNothingIsLost(Communicator& communicator);
  // Collective: of what the ranks have.
  Result<int64_t> Least(Communicator& communicator, int64_t own);
  // Collective: the problem of the lowest rank that has one, which says it on standard error;
  // empty: none has.
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

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_NODE_MEMORY_H_
