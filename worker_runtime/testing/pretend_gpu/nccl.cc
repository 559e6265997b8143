// The pretend NCCL's functions: communicators, memory and errors, and operations, alone or in
// groups.
#ifdef CADRE_HAVE_NCCL_HEADERS

#include <nccl.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/collective.h"
#include "worker_runtime/testing/pretend_gpu/communicator.h"
#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/elements.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"
#include "worker_runtime/testing/pretend_gpu/refusal.h"

namespace cadre::pretend_gpu {

// Takes an operation from the program's call to its stream: checks it, and holds it until the
// thread's group ends, if one is open. `stream` is a cudaStream_t.
ncclResult_t Submit(ncclComm_t communicator, Operation operation, const void* stream);

void BeginGroup();
ncclResult_t EndGroup();
bool IsInGroup();

}  // namespace cadre::pretend_gpu

using cadre::pretend_gpu::Communicator;
using cadre::pretend_gpu::CurrentDevice;
using cadre::pretend_gpu::FindCommunicator;
using cadre::pretend_gpu::InsideCommunicator;
using cadre::pretend_gpu::IsInGroup;
using cadre::pretend_gpu::Kind;
using cadre::pretend_gpu::MakeHandle;
using cadre::pretend_gpu::Refuse;
using cadre::pretend_gpu::ReportOpenGroup;
using cadre::pretend_gpu::Submit;
using cadre::pretend_gpu::TakeCommunicator;

namespace cadre::pretend_gpu {
namespace {

constexpr int kVersion = 22809;
constexpr char kIdPrefix[] = "cadre-pretend-nccl-";

bool IsBlocking(const ncclConfig_t* config, bool otherwise) {
  if (config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  return config->blocking != 0;
}

// Calls `body` with the communicator while no other thread uses it.
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
  // Real NCCL ranks meet at all of the ids; one id is enough here.
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
    // NCCL 2.28.9 does the same: the call does not return "in progress", only the communicator
    // does.
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

// May be called while another thread is in a call, to unblock it.
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

// Functions for operations.

extern "C" {

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kAllReduce, send, receive, count, type, op, 0, ""}, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kReduce, send, receive, count, type, op, root, ""}, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kReduceScatter, send, receive, count, type, op, 0, ""},
                stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kBroadcast, send, receive, count, type, ncclSum, root, ""},
                stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kAllGather, send, receive, count, type, ncclSum, 0, ""},
                stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kSend, send, nullptr, count, type, ncclSum, peer, ""}, stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kReceive, nullptr, receive, count, type, ncclSum, peer, ""},
                stream);
}

ncclResult_t ncclGroupStart() {
  cadre::pretend_gpu::BeginGroup();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return cadre::pretend_gpu::EndGroup(); }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  const auto communicator = FindCommunicator(handle, "ncclRedOpCreatePreMulSum");
  if (communicator == nullptr) return ncclInvalidArgument;
  const size_t bytes = cadre::pretend_gpu::SizeOf(type);
  if (bytes == 0) return Refuse(ncclInvalidArgument, "no such type is simulated");
  if (residence != ncclScalarHostImmediate) {
    return Refuse(ncclInvalidUsage, "a factor in the device's memory is not simulated");
  }
  *op = communicator->MakeFactor(type, std::string(static_cast<const char*>(scalar), bytes));
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  const auto communicator = FindCommunicator(handle, "ncclRedOpDestroy");
  if (communicator == nullptr) return ncclInvalidArgument;
  if (communicator->DropFactor(op)) return ncclSuccess;
  return Refuse(ncclInvalidArgument, "ncclRedOpDestroy: there is no such operation");
}

}  // extern "C"

namespace cadre::pretend_gpu {
namespace {

// The operations of a group on one communicator.
struct Batch {
  std::shared_ptr<Communicator> communicator;
  Stream* stream = nullptr;
  std::vector<Operation> operations;
};

struct Group {
  int depth = 0;
  std::vector<Batch> batches;
  ncclResult_t error = ncclSuccess;
};

thread_local Group group;

ncclResult_t CheckReduction(const Communicator& communicator, Operation* operation) {
  if (!IsReduction(*operation)) return ncclSuccess;
  if (operation->op == ncclAvg) {
    operation->scalar = AverageFactor(operation->type, communicator.place().size);
  }
  if (operation->op < ncclNumOps) return ncclSuccess;
  ncclDataType_t type;
  if (!communicator.FindFactor(operation->op, &type, &operation->scalar)) {
    return RefuseMistake(ncclInvalidArgument, NameOf(*operation) +
                                                  ": the operation was destroyed, or is another "
                                                  "communicator's");
  }
  if (type == operation->type) return ncclSuccess;
  return RefuseMistake(ncclInvalidArgument,
                       NameOf(*operation) + ": the operation was made for " + NameOf(type));
}

ncclResult_t Check(const Communicator& communicator, Operation* operation, const Stream* stream) {
  const Communicator::Place& place = communicator.place();
  if (SizeOf(operation->type) == 0) {
    return Refuse(ncclInvalidArgument, NameOf(*operation) + ": no such type is simulated");
  }
  if (operation->peer < 0 || operation->peer >= place.size) {
    return Refuse(ncclInvalidArgument,
                  NameOf(*operation) + ": there are " + std::to_string(place.size) + " ranks");
  }
  if (stream == nullptr || stream->device() != place.device) {
    return RefuseMistake(ncclInvalidArgument, NameOf(*operation) +
                                                  ": the stream was destroyed, or is not of GPU " +
                                                  std::to_string(place.device));
  }
  const ncclResult_t reduction = CheckReduction(communicator, operation);
  if (reduction != ncclSuccess) return reduction;
  for (const Use& use : UsesOf(*operation, place.rank, place.size)) {
    if (use.bytes == 0) continue;
    const std::string why = WhyNotOnDevice(use.address, use.bytes, place.device);
    if (why.empty()) continue;
    return RefuseMistake(ncclInvalidArgument, NameOf(*operation) + ": the memory it " +
                                                  (use.writes ? "writes " : "reads ") + why);
  }
  return ncclSuccess;
}

ncclResult_t AddToGroup(const std::shared_ptr<Communicator>& communicator, Operation operation,
                        Stream* stream) {
  HoldInGroup(*stream);
  for (Batch& batch : group.batches) {
    if (batch.communicator != communicator) continue;
    if (batch.stream != stream) {
      return Refuse(ncclInvalidUsage,
                    NameOf(operation) + ": a group on several streams is not simulated");
    }
    batch.operations.push_back(std::move(operation));
    return ncclSuccess;
  }
  group.batches.push_back({communicator, stream, {std::move(operation)}});
  return ncclSuccess;
}

ncclResult_t SubmitTo(const std::shared_ptr<Communicator>& communicator, Operation operation,
                      Stream* stream) {
  const ncclResult_t ready = communicator->CheckReady();
  if (ready != ncclSuccess) return ready;
  const ncclResult_t checked = Check(*communicator, &operation, stream);
  if (checked != ncclSuccess) return checked;
  if (group.depth > 0) return AddToGroup(communicator, std::move(operation), stream);
  return communicator->Enqueue({std::move(operation)}, *stream);
}

}  // namespace

ncclResult_t Submit(ncclComm_t handle, Operation operation, const void* stream) {
  const std::string name = NameOf(operation);
  const auto communicator = FindCommunicator(handle, name.c_str());
  if (communicator == nullptr) return ncclInvalidArgument;
  const InsideCommunicator inside(*communicator, name.c_str());
  if (!inside.ok()) return ncclInvalidUsage;
  const ncclResult_t result = SubmitTo(communicator, std::move(operation), FindStream(stream));
  if (group.depth > 0 && group.error == ncclSuccess) group.error = result;
  return result;
}

void BeginGroup() { ++group.depth; }

bool IsInGroup() { return group.depth > 0; }

ncclResult_t EndGroup() {
  if (group.depth == 0) {
    return RefuseMistake(ncclInvalidUsage, "ncclGroupEnd is called and no group is open");
  }
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, Group());
  CloseGroup();
  if (ended.error != ncclSuccess) return ended.error;
  for (const Batch& batch : ended.batches) {
    const InsideCommunicator inside(*batch.communicator, "ncclGroupEnd");
    if (!inside.ok()) return ncclInvalidUsage;
    const ncclResult_t ready = batch.communicator->CheckReady();
    if (ready != ncclSuccess) return ready;
    const ncclResult_t result = batch.communicator->Enqueue(batch.operations, *batch.stream);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
