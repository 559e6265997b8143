#include "worker_runtime/cuda/cuda_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace cadre::cuda {
#ifdef CADRE_HAVE_CUDA_HEADERS
namespace {

// Remembers the first function that the library lacks.
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

#endif  // CADRE_HAVE_CUDA_HEADERS

namespace {

constexpr int kMode = RTLD_NOW | RTLD_LOCAL;

bool IsGiven(const char* text) { return text != nullptr && *text != '\0'; }

}  // namespace

std::vector<std::string> PathsOf(const VendorLibrary& library, const char* override,
                                 const char* cuda_home) {
  // A user who names a library does not want another one.
  if (IsGiven(override)) return {override};
  std::vector<std::string> folders = {""};
  if (IsGiven(cuda_home)) {
    folders.push_back(absl::StrCat(cuda_home, "/lib64/"));
    folders.push_back(absl::StrCat(cuda_home, "/lib/"));
  }
  folders.push_back("/usr/local/cuda/lib64/");
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    for (const std::string& name : library.names) paths.push_back(absl::StrCat(folder, name));
  }
  return paths;
}

Result<void*> OpenVendorLibrary(const VendorLibrary& library) {
  const char* const override = getenv(library.variable);
  for (const std::string& name : library.names) {
    if (IsGiven(override)) break;
    // A training program brings its own library, and two versions in one process would share no
    // state.
    void* const loaded = dlopen(name.c_str(), kMode | RTLD_NOLOAD);
    if (loaded != nullptr) return loaded;
  }
  const std::vector<std::string> paths = PathsOf(library, override, getenv("CUDA_HOME"));
  std::string first_error;
  for (const std::string& path : paths) {
    void* const opened = dlopen(path.c_str(), kMode);
    if (opened != nullptr) return opened;
    const char* const error = dlerror();
    if (first_error.empty()) first_error = error != nullptr ? error : "unknown reason";
  }
  return NotFoundError(absl::StrCat(library.what, " was not found as ", absl::StrJoin(paths, ", "),
                                    " (", first_error, "); install it or name it in ",
                                    library.variable));
}

}  // namespace cadre::cuda
