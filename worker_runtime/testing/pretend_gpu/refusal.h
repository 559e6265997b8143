// Error texts of the pretend NCCL's calls. Compiled only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_REFUSAL_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_REFUSAL_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <string>

namespace cadre::pretend_gpu {

// Keeps `text` for ncclGetLastError() on this thread; returns `result`.
ncclResult_t Refuse(ncclResult_t result, const std::string& text);
// Like Refuse(), for errors whose effect a real NCCL leaves undefined: it reports a mistake too.
ncclResult_t RefuseMistake(ncclResult_t result, const std::string& text);
const std::string& LastRefusal();

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_REFUSAL_H_
