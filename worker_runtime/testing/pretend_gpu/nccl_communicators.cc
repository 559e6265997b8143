// NCCL's functions for communicators, memory and errors.
#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "worker_runtime/testing/pretend_gpu/communicator.h"
#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/handles.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"
#include "worker_runtime/testing/pretend_gpu/open_group.h"
#include "worker_runtime/testing/pretend_gpu/refusal.h"
#include "worker_runtime/testing/pretend_gpu/submit.h"

using cadre::pretend_gpu::Communicator;
using cadre::pretend_gpu::CurrentDevice;
using cadre::pretend_gpu::FindCommunicator;
using cadre::pretend_gpu::InsideCommunicator;
using cadre::pretend_gpu::IsInGroup;
using cadre::pretend_gpu::MakeHandle;
using cadre::pretend_gpu::Refuse;
using cadre::pretend_gpu::ReportOpenGroup;
using cadre::pretend_gpu::TakeCommunicator;

namespace cadre::pretend_gpu {
namespace {

constexpr int kVersion = 22809;
constexpr char kIdPrefix[] = "cadre-pretend-nccl-";

bool IsBlocking(const ncclConfig_t* config, bool otherwise) {
  if (config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  return config->blocking != 0;
}

// Calls `body` with the communicator, which no other thread is inside.
template <typename F>
ncclResult_t Inside(ncclComm_t handle, const char* what, F body) {
  const auto communicator = FindCommunicator(handle, what);
  if (communicator == nullptr) return ncclInvalidArgument;
  const InsideCommunicator inside(*communicator, what);
  if (!inside.ok()) return ncclInvalidUsage;
  if (IsInGroup()) {
    return Refuse(ncclInvalidUsage, std::string(what) + " in a group is not simulated");
  }
  return body(*communicator);
}

}  // namespace
}  // namespace cadre::pretend_gpu

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = cadre::pretend_gpu::kVersion;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  thread_local std::string text;
  text = cadre::pretend_gpu::LastRefusal();
  const auto communicator = FindCommunicator(handle, nullptr);
  std::string failed;
  if (communicator != nullptr) communicator->state(&failed);
  if (!failed.empty()) text = failed;
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::string text = cadre::pretend_gpu::kIdPrefix;
  for (int i = 0; i < 4; ++i) text += std::to_string(random());
  memset(id->internal, 0, sizeof(id->internal));
  memcpy(id->internal, text.c_str(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *handle = nullptr;
  const std::string text(id.internal, strnlen(id.internal, sizeof(id.internal)));
  if (text.rfind(cadre::pretend_gpu::kIdPrefix, 0) != 0) {
    return Refuse(ncclInvalidArgument, "the id is not one of this library's ncclGetUniqueId");
  }
  if (size < 1 || rank < 0 || rank >= size) {
    return Refuse(ncclInvalidArgument,
                  "rank " + std::to_string(rank) + " of " + std::to_string(size));
  }
  if (IsInGroup()) return Refuse(ncclInvalidUsage, "forming in a group is not simulated");
  const bool blocking = cadre::pretend_gpu::IsBlocking(config, true);
  const auto communicator = std::make_shared<Communicator>(
      Communicator::Place{text, rank, size, CurrentDevice(), blocking});
  *handle = MakeHandle(communicator);
  return communicator->Join();
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(handle, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int size, int rank, int ids,
                                      ncclUniqueId* id, ncclConfig_t* config) {
  if (ids < 1) return Refuse(ncclInvalidArgument, "a communicator needs an id");
  // The real one meets at all of them; one is enough to find each other.
  return ncclCommInitRankConfig(handle, size, id[0], rank, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const auto communicator = FindCommunicator(handle, "ncclCommGetAsyncError");
  if (communicator == nullptr) return ncclInvalidArgument;
  std::string text;
  *error = communicator->state(&text);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const auto communicator = FindCommunicator(handle, "ncclCommCount");
  if (communicator == nullptr) return ncclInvalidArgument;
  *count = communicator->place().size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const auto communicator = FindCommunicator(handle, "ncclCommUserRank");
  if (communicator == nullptr) return ncclInvalidArgument;
  *rank = communicator->place().rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  const auto communicator = FindCommunicator(handle, "ncclCommCuDevice");
  if (communicator == nullptr) return ncclInvalidArgument;
  *device = communicator->place().device;
  return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  using namespace cadre::pretend_gpu;
  return Inside(handle, "ncclCommSplit", [&](Communicator& communicator) {
    const ncclResult_t ready = communicator.CheckReady();
    if (ready != ncclSuccess) return ready;
    const ncclResult_t begun =
        communicator.Split(color, key, IsBlocking(config, communicator.place().blocking),
                           [child](std::shared_ptr<Communicator> made) {
                             *child = made == nullptr ? nullptr : MakeHandle(std::move(made));
                           });
    // As NCCL's own (2.28.9): it does not say that it goes on, only the communicator does.
    return begun == ncclInProgress ? ncclSuccess : begun;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  if (ReportOpenGroup(nullptr, "ncclCommFinalize")) return ncclInvalidUsage;
  return cadre::pretend_gpu::Inside(handle, "ncclCommFinalize", [](Communicator& communicator) {
    return communicator.Finalize();
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (ReportOpenGroup(nullptr, "ncclCommDestroy")) return ncclInvalidUsage;
  const auto communicator = TakeCommunicator(handle, "ncclCommDestroy", "destroyed");
  if (communicator == nullptr) return ncclInvalidArgument;
  const InsideCommunicator inside(*communicator, "ncclCommDestroy");
  if (!inside.ok()) return ncclInvalidUsage;
  communicator->Destroy();
  return ncclSuccess;
}

// May be called while another thread is inside, to free it.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const auto communicator = TakeCommunicator(handle, "ncclCommAbort", "aborted");
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->Abort();
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  *address = cadre::pretend_gpu::AllocateOnDevice(CurrentDevice(), bytes);
  if (*address != nullptr) return ncclSuccess;
  return Refuse(ncclUnhandledCudaError, "Cuda failure 'out of memory'");
}

ncclResult_t ncclMemFree(void* address) {
  if (cadre::pretend_gpu::FreeOnDevice(address)) return ncclSuccess;
  return Refuse(ncclInvalidArgument, "ncclMemFree: the memory is not ncclMemAlloc's");
}

// The handle of a registration is its address.
ncclResult_t ncclCommRegister(const ncclComm_t handle, void* address, size_t bytes,
                              void** registration) {
  using namespace cadre::pretend_gpu;
  return Inside(handle, "ncclCommRegister", [&](Communicator& communicator) {
    const std::string why = WhyNotOnDevice(address, bytes, communicator.place().device);
    if (!why.empty()) return Refuse(ncclInvalidArgument, "ncclCommRegister: the memory " + why);
    *registration = address;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registration) {
  using namespace cadre::pretend_gpu;
  return Inside(handle, "ncclCommDeregister", [&](Communicator& communicator) {
    const std::string why = WhyNotOnDevice(registration, 0, communicator.place().device);
    if (why.empty()) return ncclSuccess;
    return RefuseMistake(ncclInvalidArgument, "ncclCommDeregister: the memory " + why);
  });
}

}  // extern "C"

#endif  // CADRE_HAVE_NCCL_HEADERS
