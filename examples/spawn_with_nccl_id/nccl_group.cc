#include "examples/spawn_with_nccl_id/nccl_group.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

#if defined(CADRE_HAVE_CUDA_HEADERS) && defined(CADRE_HAVE_NCCL_HEADERS)
#include <cuda.h>
#include <nccl.h>
#define CADRE_EXAMPLE_WITH_NCCL 1
#endif

namespace cadre {

#ifdef CADRE_EXAMPLE_WITH_NCCL
namespace {

absl::Status Load(void* library, const char* name, void** function) {
  *function = dlsym(library, name);
  return *function != nullptr ? absl::OkStatus() : absl::NotFoundError(dlerror());
}

// Declares `name` as the function of that name in `library`. CUDA's headers rename some functions
// to their newest version (cuMemAlloc to cuMemAlloc_v2), so the name is expanded first.
#define CADRE_STRING(name) #name
#define LOAD(library, name, local) \
  decltype(&name) local = nullptr; \
  CADRE_RETURN_IF_ERROR(Load(library, CADRE_STRING(name), reinterpret_cast<void**>(&local)))

absl::StatusOr<void*> OpenDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library != nullptr) return library;
  return absl::FailedPreconditionError(absl::StrCat("no NVIDIA driver here: ", dlerror()));
}

// The one that minted the id.
absl::StatusOr<void*> OpenNccl() {
  const char* override = getenv("CADRE_NCCL_LIBRARY");
  for (const char* path : {override, "libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}) {
    if (path == nullptr) continue;
    if (void* library = dlopen(path, RTLD_NOW); library != nullptr) return library;
  }
  return absl::FailedPreconditionError(absl::StrCat("no NCCL here: ", dlerror()));
}

absl::Status Cuda(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": CUDA error ", static_cast<int>(result)));
}

// A float on the GPU.
absl::StatusOr<float> SumOverRanks(void* driver, void* nccl, ncclComm_t communicator, float value) {
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
    return absl::UnavailableError(absl::StrCat("ncclAllReduce: ", explain(result)));
  }
  CADRE_RETURN_IF_ERROR(Cuda(synchronize(), "cuCtxSynchronize"));
  CADRE_RETURN_IF_ERROR(Cuda(to_host(&value, memory, sizeof(value)), "cuMemcpyDtoH"));
  CADRE_RETURN_IF_ERROR(Cuda(release(memory), "cuMemFree"));
  return value;
}

absl::Status UseGpu(void* driver, int index) {
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

absl::StatusOr<int> CountGpus() {
  CADRE_ASSIGN_OR_RETURN(void* const driver, OpenDriver());
  LOAD(driver, cuInit, initialize);
  LOAD(driver, cuDeviceGetCount, get_count);
  int count = 0;
  if (initialize(0) != CUDA_SUCCESS || get_count(&count) != CUDA_SUCCESS || count == 0) {
    return absl::FailedPreconditionError("the NVIDIA driver sees no GPU");
  }
  return count;
}

absl::StatusOr<float> SumRanksWithNccl(absl::string_view id, int local_rank, int world_size) {
  ncclUniqueId unique_id;
  if (id.size() != sizeof(unique_id.internal)) return absl::InvalidArgumentError("not NCCL's id");
  memcpy(unique_id.internal, id.data(), id.size());
  CADRE_ASSIGN_OR_RETURN(const int gpus, CountGpus());
  // NCCL refuses two ranks on one GPU of one host, so ranks that share one say they are hosts.
  if (world_size > gpus) {
    setenv("NCCL_HOSTID", absl::StrCat("rank", local_rank).c_str(), /*replace=*/0);
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
    return absl::UnavailableError(absl::StrCat("ncclCommInitRank: ", explain(result)));
  }
  absl::StatusOr<float> sum = SumOverRanks(driver, nccl, communicator, local_rank + 1.0f);
  leave(communicator);
  return sum;
}

#else

absl::StatusOr<int> CountGpus() {
  return absl::FailedPreconditionError("built on a machine without CUDA's and NCCL's headers");
}

absl::StatusOr<float> SumRanksWithNccl(absl::string_view, int, int) { return CountGpus().status(); }

#endif

}  // namespace cadre
