// The communicator over a handle that others have formed.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_BACKEND_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_BACKEND_H_

#include <memory>

#include "cadre/result.h"
#include "worker_runtime/nccl/nccl_communicator.h"
#include "worker_runtime/nccl/nccl_handle.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::nccl {

// On the handle's device. RESOURCE_EXHAUSTED, INTERNAL: as CudaStatus() (cuda/device.h) has it.
Result<std::unique_ptr<NcclCommunicator>> MakeNcclCommunicator(std::shared_ptr<NcclHandle> handle,
                                                               const NcclOptions& options);

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_BACKEND_H_
