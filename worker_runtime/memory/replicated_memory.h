// A state that all ranks have in common, as in data parallelism: the first rank of each node keeps
// it for its node.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_REPLICATED_MEMORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_REPLICATED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "worker_runtime/memory/node_memory.h"

namespace cadre::memory {

// Names a state: the same step of another generation is another one. Ranks exchange it as it is.
struct Replica {
  int64_t generation = -1;
  int64_t step = -1;

  bool operator==(const Replica& other) const {
    return generation == other.generation && step == other.step;
  }
  // It is older. A later generation comes first: steps of an earlier one that it did not go on from
  // are no part of its history, however many they are.
  bool operator<(const Replica& other) const {
    return std::tie(generation, step) < std::tie(other.generation, other.step);
  }
};
inline constexpr size_t kReplicaFields = sizeof(Replica) / sizeof(int64_t);

class ReplicatedMemory : public NodeMemory {
 public:
  ReplicatedMemory(Worker& worker, const MemoryCheckpointOptions& options);
  ~ReplicatedMemory() override { (void)Wait(); }

 protected:
  // The newest that any node has: of the latest generation in which one was saved, whatever the
  // steps of earlier ones.
  Result<Found> Find(Communicator& communicator) override;

 private:
  // From the first rank that has it to all nodes that have not.
  Status Share(Communicator& communicator, const Replica& replica, int from);
  Status Broadcast(Communicator& communicator, const Replica& replica, int from);
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_REPLICATED_MEMORY_H_
