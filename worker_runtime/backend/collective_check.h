// The checks that every backend makes before it starts a collective. Pure.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_
#define CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/communicator.h"

namespace cadre::backend {

// The parts of two checks below that take more than a few instructions.
absl::Status PointsToNothing(const Buffer& buffer);
absl::Status CheckScaling(DataType type);

// INVALID_ARGUMENT: elements without memory.
inline absl::Status CheckBuffer(const Buffer& buffer) {
  if (buffer.data != nullptr || buffer.count == 0) return absl::OkStatus();
  return PointsToNothing(buffer);
}
// INVALID_ARGUMENT: no such rank.
absl::Status CheckRoot(int root, int size);
// INVALID_ARGUMENT: other types, or not `size` times the elements.
absl::Status CheckGather(const Buffer& input, const Buffer& output, int size);

// INVALID_ARGUMENT: other types, or the input has not `size` times the elements.
absl::Status CheckScatter(const Buffer& input, const Buffer& output, int size);
// INVALID_ARGUMENT: other types, not `size` counts, or buffers that do not fit them.
absl::Status CheckVaryingGather(const Buffer& input, const Buffer& output,
                                absl::Span<const size_t> counts, int rank, int size);
// INVALID_ARGUMENT: other types, not `size` counts, or buffers that do not fit them.
absl::Status CheckVaryingScatter(const Buffer& input, const Buffer& output,
                                 absl::Span<const size_t> counts, int rank, int size);
// INVALID_ARGUMENT: integers cannot be averaged or multiplied.
inline absl::Status CheckReduction(const Reduction& reduction, DataType type) {
  if (reduction.op != ReduceOp::kAverage && reduction.premultiply == 1) return absl::OkStatus();
  return CheckScaling(type);
}
// INVALID_ARGUMENT: no such rank, or this one.
absl::Status CheckPeer(int peer, int rank, int size);

// "sum" and so on.
absl::string_view Name(ReduceOp op);
// "float32" and so on.
absl::string_view Name(DataType type);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_
