// The little of CUDA's runtime that this program needs. It is loaded when it is first used, so that
// the program starts, and is built, where there is none. Thread safe.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GPU_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GPU_H_

#include <cstddef>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre {

// How many GPUs this process sees. FAILED_PRECONDITION says why there is none.
Result<int> CountGpus();

// Makes it the calling thread's.
Status UseGpu(int index);

// Between the host's memory and that of the calling thread's GPU, or within one of them. It is done
// when this returns.
Status CopyBytes(void* to, const void* from, size_t bytes);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GPU_H_
