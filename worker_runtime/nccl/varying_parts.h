// Collectives of parts that differ in size. NCCL has none: groups of its other operations, which it
// runs as one. Only where CADRE_WITH_NCCL is defined.
#ifndef CADRE_WORKER_RUNTIME_NCCL_VARYING_PARTS_H_
#define CADRE_WORKER_RUNTIME_NCCL_VARYING_PARTS_H_

#include <cstddef>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/span.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/nccl_api.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::nccl {

// One rank's part, and the whole that has those of all ranks one after the other.
struct VaryingParts {
  Buffer own;
  Buffer whole;
  // Elements of each rank's part.
  std::vector<size_t> counts;
  int rank = 0;
};

// Whether NCCL has an operation for them after all.
bool AreEqual(Span<const size_t> counts);

// Fills `whole`: one broadcast from each rank that has something.
ncclResult_t AllGatherParts(const NcclApi& api, ncclComm_t communicator, const VaryingParts& parts,
                            cuda::CudaStreamHandle stream);

// Fills `own`, and leaves `whole` as it is but for `own` where that lies in it: one reduction to
// each rank that gets something.
ncclResult_t ReduceScatterParts(const NcclApi& api, ncclComm_t communicator,
                                const VaryingParts& parts, ncclRedOp_t op,
                                cuda::CudaStreamHandle stream);

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_VARYING_PARTS_H_
