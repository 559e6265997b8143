// A state of each rank's own, as its shards: the rank keeps it, and in a job of several nodes so
// does its partner on the next one.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_RANK_MEMORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_RANK_MEMORY_H_

#include <memory>

#include "worker_runtime/memory/node_memory.h"
#include "worker_runtime/memory/partner.h"

namespace cadre::memory {

class RankMemory : public NodeMemory {
 public:
  RankMemory(Worker& worker, const MemoryCheckpointOptions& options);
  ~RankMemory() override { (void)Wait(); }

  Status WaitForPartner() override;

 protected:
  // The newest of which every rank's state is on some node.
  Result<Found> Find(Communicator& communicator) override;
  void AwaitRoom() override;
  void Committed(int count, const SavedStep& saved) override;

 private:
  bool has_partner() { return options().partner && worker().place().nodes > 1; }
  // States of ranks that are, and have their partner, elsewhere now.
  void RemoveOthers();

  // Once there is something to send.
  std::unique_ptr<Partner> partner_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_RANK_MEMORY_H_
