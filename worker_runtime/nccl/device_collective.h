// An NCCL call as an operation of the progress thread: its place on the stream, and how far the
// GPU is with it. Only where CADRE_WITH_NCCL is defined.
#ifndef CADRE_WORKER_RUNTIME_NCCL_DEVICE_COLLECTIVE_H_
#define CADRE_WORKER_RUNTIME_NCCL_DEVICE_COLLECTIVE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/nccl_handle.h"
#include "worker_runtime/nccl/progress_thread.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::nccl {

ncclDataType_t NcclType(DataType type);

// Makes the calls of `body` in a group. One that is not taken ends it: a communicator that does not
// block may answer that it is still at it.
bool IsTaken(ncclResult_t result);
ncclResult_t InGroup(const NcclApi& api, const std::function<ncclResult_t()>& body);

// A reduction as NCCL has it: built in, or made for one call.
class NcclReduction {
 public:
  // UNIMPLEMENTED: a factor for maximum or minimum. On the progress thread, inside Run().
  static Status Check(const Reduction& reduction);
  static ncclResult_t With(const NcclApi& api, ncclComm_t communicator, const Reduction& reduction,
                           DataType type, const std::function<ncclResult_t(ncclRedOp_t)>& call);

  // The same of `count` elements, for a communicator of any size; of one rank With() may leave some
  // out. `call` gets the first of them, and how many.
  using RangeCall = std::function<ncclResult_t(ncclRedOp_t, size_t first, size_t count)>;
  static ncclResult_t Over(const NcclApi& api, ncclComm_t communicator, const Reduction& reduction,
                           DataType type, size_t count, const RangeCall& call);
};

// Runs `call` on `stream` once all that `producer` has been given so far is done. Called on the
// caller's thread, with the device current.
Result<std::unique_ptr<DeviceOperation>> MakeDeviceCollective(
    std::shared_ptr<NcclHandle> handle, cuda::CudaStreamHandle producer,
    cuda::CudaStreamHandle stream, std::function<ncclResult_t(ncclComm_t)> call);

// Runs `body` on the progress thread; done when it returns.
std::unique_ptr<DeviceOperation> MakeHostOperation(std::function<Status(MonoTime)> body);

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_DEVICE_COLLECTIVE_H_
