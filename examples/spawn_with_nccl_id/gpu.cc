#include "gpu.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <string>

#include "cadre/status_macros.h"

namespace cadre {
namespace {

// The numbers of errors and kinds of copies in CUDA's headers, which need not be installed.
constexpr int kSuccess = 0;
constexpr int kWhereverTheyAre = 4;  // cudaMemcpyDefault

struct Cuda {
  int (*get_device_count)(int* count) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*copy)(void* to, const void* from, size_t bytes, int kind, void* stream) = nullptr;
  int (*synchronize)(void* stream) = nullptr;
  const char* (*explain)(int error) = nullptr;
};

Result<void*> OpenRuntime() {
  const char* const named = getenv("CADRE_CUDART_LIBRARY");
  for (const char* path : {named, "libcudart.so.13", "libcudart.so.12"}) {
    if (path == nullptr) continue;
    if (void* library = dlopen(path, RTLD_NOW); library != nullptr) return library;
  }
  return FailedPreconditionError(std::string("no CUDA runtime here: ") + dlerror());
}

template <typename Function>
Status Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr ? OkStatus() : FailedPreconditionError(dlerror());
}

Result<Cuda> LoadCuda() {
  CADRE_ASSIGN_OR_RETURN(void* const library, OpenRuntime());
  Cuda cuda;
  CADRE_RETURN_IF_ERROR(Find(library, "cudaGetDeviceCount", cuda.get_device_count));
  CADRE_RETURN_IF_ERROR(Find(library, "cudaSetDevice", cuda.set_device));
  CADRE_RETURN_IF_ERROR(Find(library, "cudaMemcpyAsync", cuda.copy));
  CADRE_RETURN_IF_ERROR(Find(library, "cudaStreamSynchronize", cuda.synchronize));
  CADRE_RETURN_IF_ERROR(Find(library, "cudaGetErrorString", cuda.explain));
  return cuda;
}

const Result<Cuda>& LoadedCuda() {
  static const Result<Cuda>& cuda = *new Result<Cuda>(LoadCuda());
  return cuda;
}

Status Check(const Cuda& cuda, int error, const std::string& what) {
  if (error == kSuccess) return OkStatus();
  return FailedPreconditionError(what + ": " + cuda.explain(error));
}

}  // namespace

Result<int> CountGpus() {
  CADRE_RETURN_IF_ERROR(LoadedCuda().status());
  const Cuda& cuda = *LoadedCuda();
  int count = 0;
  CADRE_RETURN_IF_ERROR(Check(cuda, cuda.get_device_count(&count), "no GPU here"));
  if (count == 0) return FailedPreconditionError("no GPU here: CUDA counts none");
  return count;
}

Status UseGpu(int index) {
  CADRE_RETURN_IF_ERROR(LoadedCuda().status());
  const Cuda& cuda = *LoadedCuda();
  return Check(cuda, cuda.set_device(index), "GPU " + std::to_string(index));
}

Status CopyBytes(void* to, const void* from, size_t bytes) {
  CADRE_RETURN_IF_ERROR(LoadedCuda().status());
  const Cuda& cuda = *LoadedCuda();
  // The copy is on the default stream, on which libtorch's operators run, too.
  CADRE_RETURN_IF_ERROR(
      Check(cuda, cuda.copy(to, from, bytes, kWhereverTheyAre, /*stream=*/nullptr), "a copy"));
  return Check(cuda, cuda.synchronize(/*stream=*/nullptr), "a copy");
}

}  // namespace cadre
