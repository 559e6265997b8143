#include "worker_runtime/nccl/varying_parts.h"

#ifdef CADRE_WITH_NCCL

#include <algorithm>

#include "worker_runtime/nccl/device_collective.h"

namespace cadre::nccl {
namespace {

// Calls `call` with the rank, the beginning and the elements of each part that has some, in a
// group.
template <typename Call>
ncclResult_t ForEachPart(const NcclApi& api, const VaryingParts& parts, const Call& call) {
  return InGroup(api, [&] {
    ncclResult_t result = ncclSuccess;
    char* place = static_cast<char*>(parts.whole.data);
    for (size_t rank = 0; rank < parts.counts.size() && IsTaken(result); ++rank) {
      const size_t count = parts.counts[rank];
      if (count > 0) result = call(static_cast<int>(rank), place, count);
      place += count * SizeOf(parts.whole.type);
    }
    return result;
  });
}

}  // namespace

bool AreEqual(Span<const size_t> counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&counts](size_t count) { return count == *counts.begin(); });
}

ncclResult_t AllGatherParts(const NcclApi& api, ncclComm_t communicator, const VaryingParts& parts,
                            cuda::CudaStreamHandle stream) {
  return ForEachPart(api, parts, [&](int root, char* place, size_t count) {
    const void* const source = root == parts.rank ? parts.own.data : place;
    return api.Broadcast(source, place, count, NcclType(parts.whole.type), root, communicator,
                         static_cast<cudaStream_t>(stream));
  });
}

ncclResult_t ReduceScatterParts(const NcclApi& api, ncclComm_t communicator,
                                const VaryingParts& parts, ncclRedOp_t op,
                                cuda::CudaStreamHandle stream) {
  return ForEachPart(api, parts, [&](int root, char* place, size_t count) {
    // Elsewhere than on the root nothing is written.
    void* const result = root == parts.rank ? parts.own.data : place;
    return api.Reduce(place, result, count, NcclType(parts.whole.type), op, root, communicator,
                      static_cast<cudaStream_t>(stream));
  });
}

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL
