// Collectives between the workers of one node, through memory that they share. Gradients that live
// in AllocateBuffer() memory are reduced in place: each rank sums its slice and writes it to all.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SHARED_MEMORY_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SHARED_MEMORY_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::shared_memory {

// The largest number of ranks.
inline constexpr int kMaxSharedMemoryRanks = 256;

// All ranks must call this equally often with the same name. `worker` must outlive the call, but
// not the communicator. FAILED_PRECONDITION: the world has more than one node, or more ranks than
// kMaxSharedMemoryRanks. RESOURCE_EXHAUSTED: memory, or descriptors for watching the others, are
// short. Operations fail with these errors:
//   UNAVAILABLE        a rank's process is gone; every other rank names it within 100 ms
//   ABORTED            a rank aborted; names it
//   DEADLINE_EXCEEDED  options.timeout passed; names missing ranks and the last call of each
//   INVALID_ARGUMENT   ranks made different calls; names them
Result<std::unique_ptr<Communicator>> ConnectSharedMemory(Worker& worker,
                                                          const CommunicatorOptions& options);

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SHARED_MEMORY_COMMUNICATOR_H_
