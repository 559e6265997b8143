// The way of an operation from a program's call to its stream: it is checked, and waits for the end
// of the thread's group, if one is open. Only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_SUBMIT_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_SUBMIT_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include "worker_runtime/testing/pretend_gpu/operation.h"

namespace cadre::pretend_gpu {

// `stream` is a cudaStream_t.
ncclResult_t Submit(ncclComm_t communicator, Operation operation, const void* stream);

void BeginGroup();
ncclResult_t EndGroup();
bool IsInGroup();

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_SUBMIT_H_
