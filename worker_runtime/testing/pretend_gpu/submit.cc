#include "worker_runtime/testing/pretend_gpu/submit.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/communicator.h"
#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/elements.h"
#include "worker_runtime/testing/pretend_gpu/handles.h"
#include "worker_runtime/testing/pretend_gpu/open_group.h"
#include "worker_runtime/testing/pretend_gpu/refusal.h"

namespace cadre::pretend_gpu {
namespace {

// What a group has of one communicator.
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
