// Collectives between the workers of one node, through memory they share. Gradients that live in
// AllocateBuffer() are reduced where they are: each rank sums its slice and writes it to all.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SHARED_MEMORY_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SHARED_MEMORY_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/shared_memory/limits.h"

namespace cadre::shared_memory {

// All ranks call it the same number of times with the same name; `worker` must outlive the call,
// not the communicator. FAILED_PRECONDITION: the world has more than one node, or more ranks than
// kMaxSharedMemoryRanks. RESOURCE_EXHAUSTED: no memory, or no descriptors to watch the others by.
// The operations' errors:
//   UNAVAILABLE        a rank's process is gone; says which, on every other rank, within 100 ms
//   ABORTED            a rank aborted; says which
//   DEADLINE_EXCEEDED  options.timeout passed; says which ranks did not come, and what each did
//   INVALID_ARGUMENT   ranks made different calls; says which
Result<std::unique_ptr<Communicator>> ConnectSharedMemory(Worker& worker,
                                                          const CommunicatorOptions& options);

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SHARED_MEMORY_COMMUNICATOR_H_
