// How much one communicator joins.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_LIMITS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_LIMITS_H_

namespace cadre::shared_memory {

// Ranks of one communicator at most.
inline constexpr int kMaxSharedMemoryRanks = 256;

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_LIMITS_H_
