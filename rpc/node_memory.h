// The memory that a job takes of a node: the server counts it when it places the job, and the
// agent's cgroup holds the job to it. Pure.
#ifndef CADRE_RPC_NODE_MEMORY_H_
#define CADRE_RPC_NODE_MEMORY_H_

#include <algorithm>
#include <cstdint>

namespace cadre::rpc {

// The most memory of one node, in bytes: 64 TiB, more than machines have. So the memory of all jobs
// on a node can be added up without overflow.
inline constexpr uint64_t kMaxNodeMemory = uint64_t{1} << 46;

// Memory needed beside the workers: by the launcher with the job's store, its supervisor, and the
// template from which workers of a Python program are forked.
inline constexpr uint64_t kLauncherMemory = uint64_t{1} << 30;

// Returns the memory of a job with so many workers on the node, its launcher included; 0 if the job
// does not say what a worker needs. INT64_MAX, the kernel's largest number, stands for all that is
// more.
inline uint64_t JobMemory(uint64_t per_worker, uint64_t workers) {
  if (per_worker == 0) return 0;
  if (per_worker > (INT64_MAX - kLauncherMemory) / std::max<uint64_t>(workers, 1)) return INT64_MAX;
  return per_worker * workers + kLauncherMemory;
}

}  // namespace cadre::rpc

#endif  // CADRE_RPC_NODE_MEMORY_H_
