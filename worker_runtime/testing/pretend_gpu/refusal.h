// Errors of the pretend NCCL's calls, in words. Only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_REFUSAL_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_REFUSAL_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <string>

namespace cadre::pretend_gpu {

// Keeps `text` for ncclGetLastError() on this thread; gives `result` back.
ncclResult_t Refuse(ncclResult_t result, const std::string& text);
// The same, for what a real NCCL leaves undefined: it is a mistake of the program's as well.
ncclResult_t RefuseMistake(ncclResult_t result, const std::string& text);
const std::string& LastRefusal();

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_REFUSAL_H_
