// What every function of the pretend runtime begins and ends with.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_CUDART_CALL_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_CUDART_CALL_H_

#ifdef CADRE_HAVE_CUDA_HEADERS
#include <cuda_runtime_api.h>

namespace cadre::pretend_gpu {

// Why no function works in this process: there is no driver or no GPU, the process was forked from
// one that had used CUDA, or a mistake was made before.
cudaError_t WhyNothingWorks();

// For cudaGetLastError().
cudaError_t KeepError(cudaError_t error);

template <typename F>
cudaError_t Call(F body) {
  const cudaError_t error = WhyNothingWorks();
  return KeepError(error != cudaSuccess ? error : body());
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_CUDA_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_CUDART_CALL_H_
