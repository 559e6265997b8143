// What every function of the pretend CUDA runtime does first and last.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_CUDART_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_CUDART_H_

#ifdef CADRE_HAVE_CUDA_HEADERS
#include <cuda_runtime_api.h>

namespace cadre::pretend_gpu {

// Returns why all functions fail in this process: there is no driver or no GPU, the process was
// forked from one that had used CUDA, or a mistake was reported before.
cudaError_t WhyNothingWorks();

// Keeps the error for cudaGetLastError().
cudaError_t KeepError(cudaError_t error);

template <typename F>
cudaError_t Call(F body) {
  const cudaError_t error = WhyNothingWorks();
  return KeepError(error != cudaSuccess ? error : body());
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_CUDA_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_CUDART_H_
