// What the pretend NCCL gives to programs for communicators. Thread safe. Only where NCCL's header
// is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_HANDLES_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_HANDLES_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <memory>

#include "worker_runtime/testing/pretend_gpu/communicator.h"

namespace cadre::pretend_gpu {

ncclComm_t MakeHandle(std::shared_ptr<Communicator> communicator);
// Null: it was never one, or has ended; Refuse()d, and a mistake where `what` is not null.
std::shared_ptr<Communicator> FindCommunicator(ncclComm_t handle, const char* what);
// The handle's end, "aborted" or "destroyed". Handles are not used twice.
std::shared_ptr<Communicator> TakeCommunicator(ncclComm_t handle, const char* what,
                                               const char* end);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_HANDLES_H_
