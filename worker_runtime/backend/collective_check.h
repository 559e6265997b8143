// The checks that every backend makes before it starts a collective. Pure.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_
#define CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_

#include "absl/strings/string_view.h"
#include "cadre/communicator.h"
#include "cadre/span.h"
#include "cadre/status.h"

namespace cadre::backend {

// The parts of two checks below that take more than a few instructions.
Status PointsToNothing(const Buffer& buffer);
Status CheckScaling(DataType type);

// INVALID_ARGUMENT: elements without memory.
inline Status CheckBuffer(const Buffer& buffer) {
  if (buffer.data != nullptr || buffer.count == 0) return OkStatus();
  return PointsToNothing(buffer);
}
// INVALID_ARGUMENT: no such rank.
Status CheckRoot(int root, int size);
// INVALID_ARGUMENT: other types, or not `size` times the elements.
Status CheckGather(const Buffer& input, const Buffer& output, int size);

// INVALID_ARGUMENT: other types, or the input has not `size` times the elements.
Status CheckScatter(const Buffer& input, const Buffer& output, int size);
// INVALID_ARGUMENT: other types, not `size` counts, or buffers that do not fit them.
Status CheckVaryingGather(const Buffer& input, const Buffer& output, Span<const size_t> counts,
                          int rank, int size);
// INVALID_ARGUMENT: other types, not `size` counts, or buffers that do not fit them.
Status CheckVaryingScatter(const Buffer& input, const Buffer& output, Span<const size_t> counts,
                           int rank, int size);
// INVALID_ARGUMENT: integers cannot be averaged or multiplied.
inline Status CheckReduction(const Reduction& reduction, DataType type) {
  if (reduction.op != ReduceOp::kAverage && reduction.premultiply == 1) return OkStatus();
  return CheckScaling(type);
}
// INVALID_ARGUMENT: no such rank, or this one.
Status CheckPeer(int peer, int rank, int size);

// "sum" and so on.
absl::string_view Name(ReduceOp op);
// "float32" and so on.
absl::string_view Name(DataType type);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_
