#include "nccl_group.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "cadre/status_macros.h"

#if defined(CADRE_HAVE_CUDA_HEADERS) && defined(CADRE_HAVE_NCCL_HEADERS)
#include <cuda.h>
#include <nccl.h>
#define CADRE_EXAMPLE_WITH_NCCL 1
#endif

namespace cadre {

#ifdef CADRE_EXAMPLE_WITH_NCCL
namespace {

Status Load(void* library, const char* name, void** function) {
  *function = dlsym(library, name);
  return *function != nullptr ? OkStatus() : NotFoundError(dlerror());
}

// Declares `name` as the function of that name in `library`. CUDA's headers rename some functions
// to their newest version (cuMemAlloc to cuMemAlloc_v2), so the name is expanded first.
#define CADRE_STRING(name) #name
#define LOAD(library, name, local) \
  decltype(&name) local = nullptr; \
  CADRE_RETURN_IF_ERROR(Load(library, CADRE_STRING(name), reinterpret_cast<void**>(&local)))

Result<void*> OpenDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library != nullptr) return library;
  return FailedPreconditionError(std::string("no NVIDIA driver here: ") + dlerror());
}

// The one that minted the id.
Result<void*> OpenNccl() {
  const char* override = getenv("CADRE_NCCL_LIBRARY");
  for (const char* path : {override, "libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}) {
    if (path == nullptr) continue;
    if (void* library = dlopen(path, RTLD_NOW); library != nullptr) return library;
  }
  return FailedPreconditionError(std::string("no NCCL here: ") + dlerror());
}

Status Cuda(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return OkStatus();
  return UnavailableError(what + ": CUDA error " + std::to_string(static_cast<int>(result)));
}

// A float on the GPU.
Result<float> SumOverRanks(void* driver, void* nccl, ncclComm_t communicator, float value) {
  LOAD(driver, cuMemAlloc, allocate);
  LOAD(driver, cuMemFree, release);
  LOAD(driver, cuMemcpyHtoD, to_device);
  LOAD(driver, cuMemcpyDtoH, to_host);
  LOAD(driver, cuCtxSynchronize, synchronize);
  LOAD(nccl, ncclAllReduce, all_reduce);
  LOAD(nccl, ncclGetErrorString, explain);
  CUdeviceptr memory = 0;
  CADRE_RETURN_IF_ERROR(Cuda(allocate(&memory, sizeof(value)), "cuMemAlloc"));
  CADRE_RETURN_IF_ERROR(Cuda(to_device(memory, &value, sizeof(value)), "cuMemcpyHtoD"));
  auto* place = reinterpret_cast<void*>(memory);
  const ncclResult_t result =
      all_reduce(place, place, 1, ncclFloat32, ncclSum, communicator, /*stream=*/nullptr);
  if (result != ncclSuccess) {
    return UnavailableError(std::string("ncclAllReduce: ") + explain(result));
  }
  CADRE_RETURN_IF_ERROR(Cuda(synchronize(), "cuCtxSynchronize"));
  CADRE_RETURN_IF_ERROR(Cuda(to_host(&value, memory, sizeof(value)), "cuMemcpyDtoH"));
  CADRE_RETURN_IF_ERROR(Cuda(release(memory), "cuMemFree"));
  return value;
}

Status UseGpu(void* driver, int index) {
  LOAD(driver, cuDeviceGet, get_device);
  LOAD(driver, cuDevicePrimaryCtxRetain, retain);
  LOAD(driver, cuCtxSetCurrent, set_current);
  CUdevice device = 0;
  CUcontext context = nullptr;
  CADRE_RETURN_IF_ERROR(Cuda(get_device(&device, index), "cuDeviceGet"));
  CADRE_RETURN_IF_ERROR(Cuda(retain(&context, device), "cuDevicePrimaryCtxRetain"));
  return Cuda(set_current(context), "cuCtxSetCurrent");
}

}  // namespace

Result<int> CountGpus() {
  CADRE_ASSIGN_OR_RETURN(void* const driver, OpenDriver());
  LOAD(driver, cuInit, initialize);
  LOAD(driver, cuDeviceGetCount, get_count);
  int count = 0;
  if (initialize(0) != CUDA_SUCCESS || get_count(&count) != CUDA_SUCCESS || count == 0) {
    return FailedPreconditionError("the NVIDIA driver sees no GPU");
  }
  return count;
}

Result<float> SumRanksWithNccl(std::string_view id, int local_rank, int world_size) {
  ncclUniqueId unique_id;
  if (id.size() != sizeof(unique_id.internal)) return InvalidArgumentError("not NCCL's id");
  memcpy(unique_id.internal, id.data(), id.size());
  CADRE_ASSIGN_OR_RETURN(const int gpus, CountGpus());
  // NCCL refuses two ranks on one GPU of one host, so ranks that share one say they are hosts.
  if (world_size > gpus) {
    setenv("NCCL_HOSTID", ("rank" + std::to_string(local_rank)).c_str(), /*replace=*/0);
  }
  CADRE_ASSIGN_OR_RETURN(void* const driver, OpenDriver());
  CADRE_ASSIGN_OR_RETURN(void* const nccl, OpenNccl());
  CADRE_RETURN_IF_ERROR(UseGpu(driver, local_rank % gpus));
  LOAD(nccl, ncclCommInitRank, join);
  LOAD(nccl, ncclCommDestroy, leave);
  LOAD(nccl, ncclGetErrorString, explain);
  ncclComm_t communicator = nullptr;
  const ncclResult_t result = join(&communicator, world_size, unique_id, local_rank);
  if (result != ncclSuccess) {
    return UnavailableError(std::string("ncclCommInitRank: ") + explain(result));
  }
  Result<float> sum = SumOverRanks(driver, nccl, communicator, local_rank + 1.0f);
  leave(communicator);
  return sum;
}

#else

Result<int> CountGpus() {
  return FailedPreconditionError("built on a machine without CUDA's and NCCL's headers");
}

Result<float> SumRanksWithNccl(std::string_view, int, int) { return CountGpus().status(); }

#endif

}  // namespace cadre
