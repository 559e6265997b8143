// The functions of CUDA's runtime as a table, filled from the library that is loaded at run time.
// Only where the program was built with CUDA's headers. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_CUDA_CUDA_API_H_
#define CADRE_WORKER_RUNTIME_CUDA_CUDA_API_H_

#include <cstddef>

#include "cadre/result.h"

#ifdef CADRE_HAVE_CUDA_HEADERS
#include <cuda_runtime_api.h>

namespace cadre::cuda {

// Written out where cuda_runtime.h, which nccl.h includes, overloads the name.
struct CudaApi {
  decltype(&cudaGetErrorString) GetErrorString = nullptr;
  decltype(&cudaGetLastError) GetLastError = nullptr;
  decltype(&cudaDriverGetVersion) DriverGetVersion = nullptr;
  decltype(&cudaRuntimeGetVersion) RuntimeGetVersion = nullptr;
  decltype(&cudaGetDeviceCount) GetDeviceCount = nullptr;
  decltype(&cudaGetDevice) GetDevice = nullptr;
  decltype(&cudaSetDevice) SetDevice = nullptr;
  decltype(&cudaDeviceGetPCIBusId) DeviceGetPCIBusId = nullptr;
  decltype(&cudaDeviceGetStreamPriorityRange) DeviceGetStreamPriorityRange = nullptr;
  decltype(&cudaStreamCreateWithPriority) StreamCreateWithPriority = nullptr;
  decltype(&cudaStreamDestroy) StreamDestroy = nullptr;
  decltype(&cudaStreamSynchronize) StreamSynchronize = nullptr;
  decltype(&cudaStreamWaitEvent) StreamWaitEvent = nullptr;
  cudaError_t (*EventCreate)(cudaEvent_t*) = nullptr;
  decltype(&cudaEventDestroy) EventDestroy = nullptr;
  decltype(&cudaEventRecord) EventRecord = nullptr;
  decltype(&cudaEventQuery) EventQuery = nullptr;
  decltype(&cudaEventElapsedTime) EventElapsedTime = nullptr;
  cudaError_t (*Malloc)(void**, size_t) = nullptr;
  decltype(&cudaFree) Free = nullptr;
  decltype(&cudaMemcpyAsync) MemcpyAsync = nullptr;
  decltype(&cudaMemsetAsync) MemsetAsync = nullptr;
};

// Loaded once: the library that CADRE_CUDART_LIBRARY names; else the one that this process has
// already, as a program with PyTorch does; else version 13 or 12 on the loader's path, in
// $CUDA_HOME/lib64 or in /usr/local/cuda/lib64. NOT_FOUND: none, saying where it was looked for, or
// one that lacks a function.
Result<const CudaApi*> LoadCudaApi();

}  // namespace cadre::cuda

#endif  // CADRE_HAVE_CUDA_HEADERS

#endif  // CADRE_WORKER_RUNTIME_CUDA_CUDA_API_H_
