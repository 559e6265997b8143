// Loads NVIDIA's libraries at run time, so that a program that uses them starts without them, and
// fills a table with the functions of CUDA's runtime. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_CUDA_CUDA_API_H_
#define CADRE_WORKER_RUNTIME_CUDA_CUDA_API_H_

#include <cstddef>
#include <string>
#include <vector>

#include "cadre/result.h"

#ifdef CADRE_HAVE_CUDA_HEADERS
#include <cuda_runtime_api.h>
#endif

namespace cadre::cuda {

struct VendorLibrary {
  // The library's name in error texts, such as "NCCL".
  const char* what;
  // The environment variable that names the file.
  const char* variable;
  // Sonames, the preferred one first.
  std::vector<std::string> names;
};

// Returns the paths to try, in this order. `override` and `cuda_home` may be null.
std::vector<std::string> PathsOf(const VendorLibrary& library, const char* override,
                                 const char* cuda_home);

// Opens the library for good: the file that its variable names; otherwise the one that this process
// has already loaded under any of its names; otherwise the first that exists. NOT_FOUND: there is
// none; the text says where it was searched for.
Result<void*> OpenVendorLibrary(const VendorLibrary& library);

#ifdef CADRE_HAVE_CUDA_HEADERS

// Types are spelled out where cuda_runtime.h, which nccl.h includes, overloads the name.
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

// Loads the library once: the one that CADRE_CUDART_LIBRARY names; otherwise the one that this
// process has loaded already, as a program with PyTorch does; otherwise version 13 or 12 on the
// loader's path, in $CUDA_HOME/lib64 or in /usr/local/cuda/lib64. NOT_FOUND: there is none (the
// text says where it was searched for), or it lacks a function.
Result<const CudaApi*> LoadCudaApi();

#endif  // CADRE_HAVE_CUDA_HEADERS

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_CUDA_API_H_
