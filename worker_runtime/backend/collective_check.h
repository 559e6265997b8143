// The checks that every backend makes before it starts a collective, and the texts that describe
// collectives in errors and when ranks compare their calls. Pure.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_
#define CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/communicator.h"
#include "cadre/span.h"
#include "cadre/status.h"

namespace cadre::backend {

// The texts below are equal on all ranks that make the same call.

// For example "5 float32".
std::string TextOf(const Buffer& buffer);

// For example "all-reduce (sum) of 5 float32".
std::string AllReduceText(const Buffer& buffer, const Reduction& reduction);
std::string ReduceText(const Buffer& buffer, const Reduction& reduction, int root);
std::string ReduceScatterText(const Buffer& output, const Reduction& reduction);
std::string ReduceScatterVaryingText(const Buffer& input, const Reduction& reduction,
                                     Span<const size_t> counts);
std::string BroadcastText(const Buffer& buffer, int root);
std::string AllGatherText(const Buffer& input);
std::string AllGatherVaryingText(const Buffer& output, Span<const size_t> counts);

// The slow paths of two checks below, out of line so that the checks inline to a few instructions.
Status PointsToNothing(const Buffer& buffer);
Status CheckScaling(DataType type);

// INVALID_ARGUMENT: a non-empty buffer has a null pointer.
inline Status CheckBuffer(const Buffer& buffer) {
  if (buffer.data != nullptr || buffer.count == 0) return OkStatus();
  return PointsToNothing(buffer);
}
// INVALID_ARGUMENT: no such rank.
Status CheckRoot(int root, int size);
// INVALID_ARGUMENT: the types differ, or the output does not have `size` times the elements.
Status CheckGather(const Buffer& input, const Buffer& output, int size);

// INVALID_ARGUMENT: the types differ, or the input does not have `size` times the elements.
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
// INVALID_ARGUMENT: the rank does not exist, or is this one.
Status CheckPeer(int peer, int rank, int size);

// "sum" and so on.
absl::string_view Name(ReduceOp op);
// "float32" and so on.
absl::string_view Name(DataType type);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_COLLECTIVE_CHECK_H_
