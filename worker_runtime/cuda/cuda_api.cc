#include "worker_runtime/cuda/cuda_api.h"

#ifdef CADRE_HAVE_CUDA_HEADERS

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/cuda/vendor_library.h"

namespace cadre::cuda {
namespace {

// Keeps the name of the first function that is not there.
class Table {
 public:
  explicit Table(void* library) : library_(library) {}

  template <typename F>
  Table& Add(const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(library_, name));
    if (*function == nullptr && missing_ == nullptr) missing_ = name;
    return *this;
  }
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

Result<const CudaApi*> Load() {
  ASSIGN_OR_RETURN(void* const library,
                   OpenVendorLibrary({"CUDA's runtime",
                                      "CADRE_CUDART_LIBRARY",
                                      {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}}));
  auto* const api = new CudaApi;
  Table table(library);
  table.Add("cudaGetErrorString", &api->GetErrorString)
      .Add("cudaGetLastError", &api->GetLastError)
      .Add("cudaDriverGetVersion", &api->DriverGetVersion)
      .Add("cudaRuntimeGetVersion", &api->RuntimeGetVersion)
      .Add("cudaGetDeviceCount", &api->GetDeviceCount)
      .Add("cudaGetDevice", &api->GetDevice)
      .Add("cudaSetDevice", &api->SetDevice)
      .Add("cudaDeviceGetPCIBusId", &api->DeviceGetPCIBusId)
      .Add("cudaDeviceGetStreamPriorityRange", &api->DeviceGetStreamPriorityRange)
      .Add("cudaStreamCreateWithPriority", &api->StreamCreateWithPriority)
      .Add("cudaStreamDestroy", &api->StreamDestroy)
      .Add("cudaStreamSynchronize", &api->StreamSynchronize)
      .Add("cudaStreamWaitEvent", &api->StreamWaitEvent)
      .Add("cudaEventCreate", &api->EventCreate)
      .Add("cudaEventDestroy", &api->EventDestroy)
      .Add("cudaEventRecord", &api->EventRecord)
      .Add("cudaEventQuery", &api->EventQuery)
      .Add("cudaEventElapsedTime", &api->EventElapsedTime)
      .Add("cudaMalloc", &api->Malloc)
      .Add("cudaFree", &api->Free)
      .Add("cudaMemcpyAsync", &api->MemcpyAsync)
      .Add("cudaMemsetAsync", &api->MemsetAsync);
  if (table.missing() == nullptr) return api;
  delete api;
  return NotFoundError(absl::StrCat("the CUDA runtime that is installed has no ", table.missing(),
                                    "; version 12 or 13 is needed"));
}

}  // namespace

Result<const CudaApi*> LoadCudaApi() {
  static const auto* const api = new Result<const CudaApi*>(Load());
  return *api;
}

}  // namespace cadre::cuda

#endif  // CADRE_HAVE_CUDA_HEADERS
