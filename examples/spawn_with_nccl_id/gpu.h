// The few functions of CUDA's runtime that this program needs. The runtime is loaded on first use,
// so that the program can be built and started where there is none. Thread safe.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GPU_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GPU_H_

#include <cstddef>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre {

// Returns how many GPUs this process sees. Fails with FAILED_PRECONDITION, which says why, if none.
Result<int> CountGpus();

// Makes the GPU the calling thread's current one.
Status UseGpu(int index);

// Copies between the host's memory and that of the calling thread's GPU, or within one of them. The
// copy is complete when this returns.
Status CopyBytes(void* to, const void* from, size_t bytes);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GPU_H_
