// A state that all ranks have in common, as in data parallelism: the first rank of each node keeps
// it for its node.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_REPLICATED_MEMORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_REPLICATED_MEMORY_H_

#include <cstdint>

#include "worker_runtime/memory/node_memory.h"

namespace cadre::memory {

class ReplicatedMemory : public NodeMemory {
 public:
  ReplicatedMemory(Worker& worker, const MemoryCheckpointOptions& options);
  ~ReplicatedMemory() override { (void)Wait(); }

 protected:
  // The newest that any node has.
  Result<Found> Find(Communicator& communicator) override;

 private:
  // From the first rank that has it to all nodes that have not.
  Status Share(Communicator& communicator, int64_t step, int from);
  Status Broadcast(Communicator& communicator, int64_t step, int from);
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_REPLICATED_MEMORY_H_
