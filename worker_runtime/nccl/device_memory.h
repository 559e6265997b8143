// Memory that NCCL reduces without copies. Only where CADRE_WITH_NCCL is defined.
#ifndef CADRE_WORKER_RUNTIME_NCCL_DEVICE_MEMORY_H_
#define CADRE_WORKER_RUNTIME_NCCL_DEVICE_MEMORY_H_

#include <cstddef>
#include <memory>

#include "base/time.h"
#include "cadre/result.h"
#include "worker_runtime/nccl/nccl_handle.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::nccl {

// On the current device; from NCCL's own allocator and registered with it where it can do that
// (2.19), else from CUDA's. Freed with the last owner, on any thread; may outlive the communicator.
// RESOURCE_EXHAUSTED: no memory.
Result<std::shared_ptr<void>> AllocateForNccl(std::shared_ptr<NcclHandle> handle, size_t bytes,
                                              MonoTime deadline);

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_DEVICE_MEMORY_H_
