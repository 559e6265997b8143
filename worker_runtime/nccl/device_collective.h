// NCCL's collectives: a call as an operation of the progress thread, which enqueues it on the
// stream and observes the GPU's progress; reductions; collectives of parts that differ in size; and
// memory that NCCL reduces without copying. Only where CADRE_WITH_NCCL is defined.
#ifndef CADRE_WORKER_RUNTIME_NCCL_DEVICE_COLLECTIVE_H_
#define CADRE_WORKER_RUNTIME_NCCL_DEVICE_COLLECTIVE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_handle.h"
#include "worker_runtime/nccl/progress_thread.h"

#ifdef CADRE_WITH_NCCL
namespace cadre::nccl {

// Collectives of parts that differ in size: NCCL has none, so they are groups of its other
// operations, which it runs as one.

// One rank's part, and the whole, which holds the parts of all ranks one after the other.
struct VaryingParts {
  Buffer own;
  Buffer whole;
  // The number of elements of each rank's part.
  std::vector<size_t> counts;
  int rank = 0;
};

// Returns true if all parts have the same size, so that one of NCCL's operations can be used.
bool AreEqual(Span<const size_t> counts);

// Fills `whole` with one broadcast from each rank whose part is not empty.
ncclResult_t AllGatherParts(const NcclApi& api, ncclComm_t communicator, const VaryingParts& parts,
                            cuda::CudaStreamHandle stream);

// Fills `own` with one reduction to each rank whose part is not empty. `whole` is not changed,
// except where it contains `own`.
ncclResult_t ReduceScatterParts(const NcclApi& api, ncclComm_t communicator,
                                const VaryingParts& parts, ncclRedOp_t op,
                                cuda::CudaStreamHandle stream);

// Allocates on the current device: from NCCL's own allocator, registered with NCCL, if NCCL
// supports that (2.19), otherwise from CUDA's. The memory is freed with the last owner, on any
// thread, and may outlive the communicator. RESOURCE_EXHAUSTED: memory is short.
Result<std::shared_ptr<void>> AllocateForNccl(std::shared_ptr<NcclHandle> handle, size_t bytes,
                                              MonoTime deadline);

ncclDataType_t NcclType(DataType type);

// IsTaken() returns true if NCCL accepted a call: a non-blocking communicator may answer
// ncclInProgress. InGroup() makes the calls of `body` in a group; `body` must stop at a call that
// was not accepted.
bool IsTaken(ncclResult_t result);
ncclResult_t InGroup(const NcclApi& api, const std::function<ncclResult_t()>& body);

// A reduction in NCCL's form: a built-in operation, or one created for a single call.
class NcclReduction {
 public:
  // UNIMPLEMENTED: a factor for maximum or minimum. The functions below are for the progress
  // thread, inside Run().
  static Status Check(const Reduction& reduction);
  static ncclResult_t With(const NcclApi& api, ncclComm_t communicator, const Reduction& reduction,
                           DataType type, const std::function<ncclResult_t(ncclRedOp_t)>& call);

  // Does the same for `count` elements in a communicator of any size. In one of a single rank,
  // With() alone may leave out some elements. `call` gets the first of its elements and their
  // number.
  using RangeCall = std::function<ncclResult_t(ncclRedOp_t, size_t first, size_t count)>;
  static ncclResult_t Over(const NcclApi& api, ncclComm_t communicator, const Reduction& reduction,
                           DataType type, size_t count, const RangeCall& call);
};

// Runs `call` on `stream` after everything that was enqueued on `producer` so far. This is called
// on the user's thread, with the device current.
Result<std::unique_ptr<DeviceOperation>> MakeDeviceCollective(
    std::shared_ptr<NcclHandle> handle, cuda::CudaStreamHandle producer,
    cuda::CudaStreamHandle stream, std::function<ncclResult_t(ncclComm_t)> call);

// Runs `body` on the progress thread. The operation is done when it returns.
std::unique_ptr<DeviceOperation> MakeHostOperation(std::function<Status(MonoTime)> body);

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_DEVICE_COLLECTIVE_H_
