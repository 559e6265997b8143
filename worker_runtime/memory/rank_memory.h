// Checkpoints of a state that differs between ranks (sharded). Each rank keeps its own, and in a
// job of several nodes its partner on the next node keeps a copy. From what the nodes hold, all
// ranks agree on the step from which they resume.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_RANK_MEMORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_RANK_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/node_memory.h"
#include "worker_runtime/memory/partner.h"

namespace cadre::memory {

// A state of `rank` that `node` holds. All fields have 8 bytes, so ranks exchange the struct as is.
struct Holding {
  int64_t rank = 0;
  int64_t node = 0;
  int64_t step = 0;
  int64_t generation = 0;
  int64_t bytes = 0;
};
inline constexpr size_t kHoldingFields = sizeof(Holding) / sizeof(int64_t);

// `from` sends `rank` its state.
struct Delivery {
  int rank = 0;
  int from = 0;
  int64_t bytes = 0;
};

struct Agreement {
  int64_t step = 0;
  uint64_t generation = 0;
  std::vector<Delivery> deliveries;
};

// Returns the newest step for which every rank's state is on some node, all saved in the same
// generation. A later generation takes precedence over a higher step, so a state from before a
// rollback never wins. `nodes[r]` is rank r's node; all ranks of a node can read what that node
// holds. nullopt: there is no such step. Pure.
std::optional<Agreement> Agree(const std::vector<Holding>& holdings, const std::vector<int>& nodes);

// Collective. Gathers what all nodes hold of all ranks and returns what Agree() makes of it.
Result<std::optional<Agreement>> AgreeWithAll(Communicator& communicator, const WorkerPlace& place,
                                              const std::string& directory,
                                              std::chrono::nanoseconds timeout);

// Collective. Sends the states that this rank has to send, and receives its own state into `own` if
// another node holds it. On an error the communicator is aborted, so the other ranks fail too.
Status Deliver(Communicator& communicator, const Agreement& agreement, const std::string& directory,
               MemorySlots& own, std::chrono::nanoseconds timeout);

// Returns the path at which this node holds `rank`'s agreed state; empty if it holds none.
std::string PathOf(const Agreement& agreement, int rank, const std::string& directory);

class RankMemory : public NodeMemory {
 public:
  RankMemory(Worker& worker, const MemoryCheckpointOptions& options);
  ~RankMemory() override { (void)Wait(); }

  Status WaitForPartner() override;

 protected:
  // Finds the newest step for which every rank's state is on some node.
  Result<Found> Find(Communicator& communicator) override;
  void AwaitRoom() override;
  void Committed(int count, const SavedStep& saved) override;

 private:
  bool has_partner() { return options().partner && worker().place().nodes > 1; }
  // Removes states of ranks that now run elsewhere and have their partner elsewhere.
  void RemoveOthers();

  // Null until there is a state to send.
  std::unique_ptr<Partner> partner_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_RANK_MEMORY_H_
