// Checks the arguments of collectives, and describes calls in errors.
#include "worker_runtime/backend/collective_check.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace cadre::backend {
Status PointsToNothing(const Buffer& buffer) {
  return InvalidArgumentError(
      absl::StrCat("a buffer of ", buffer.count, " elements has a null pointer"));
}

Status CheckRoot(int root, int size) {
  if (root >= 0 && root < size) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("root is rank ", root, ", but ranks are 0 to ", size - 1));
}

Status CheckGather(const Buffer& input, const Buffer& output, int size) {
  RETURN_IF_ERROR(CheckBuffer(input));
  RETURN_IF_ERROR(CheckBuffer(output));
  if (input.type == output.type && output.count == input.count * static_cast<size_t>(size)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      absl::StrCat("all-gather of ", input.count, " ", Name(input.type), " from ", size,
                   " ranks needs an output of ", input.count * static_cast<size_t>(size), " ",
                   Name(input.type), ", not ", output.count, " ", Name(output.type)));
}

Status CheckScatter(const Buffer& input, const Buffer& output, int size) {
  RETURN_IF_ERROR(CheckBuffer(input));
  RETURN_IF_ERROR(CheckBuffer(output));
  if (input.type == output.type && input.count == output.count * static_cast<size_t>(size)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      absl::StrCat("reduce-scatter to ", output.count, " ", Name(output.type), " on each of ", size,
                   " ranks needs an input of ", output.count * static_cast<size_t>(size), " ",
                   Name(output.type), ", not ", input.count, " ", Name(input.type)));
}

namespace {

// `part` has counts[rank] elements; `whole` has those of all ranks.
Status CheckVarying(absl::string_view operation, const Buffer& input, const Buffer& output,
                    const Buffer& part, const Buffer& whole, Span<const size_t> counts, int rank,
                    int size) {
  RETURN_IF_ERROR(CheckBuffer(input));
  RETURN_IF_ERROR(CheckBuffer(output));
  if (counts.size() != static_cast<size_t>(size)) {
    return InvalidArgumentError(absl::StrCat(operation, " of ", size, " ranks needs ", size,
                                             " counts, not ", counts.size()));
  }
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (part.type == whole.type && part.count == counts[rank] && whole.count == total) {
    return OkStatus();
  }
  return InvalidArgumentError(absl::StrCat(
      operation, " of ", counts[rank], " of ", total, " elements got an input of ", input.count,
      " ", Name(input.type), " and an output of ", output.count, " ", Name(output.type)));
}

}  // namespace

Status CheckVaryingGather(const Buffer& input, const Buffer& output, Span<const size_t> counts,
                          int rank, int size) {
  return CheckVarying("all-gather", input, output, input, output, counts, rank, size);
}

Status CheckVaryingScatter(const Buffer& input, const Buffer& output, Span<const size_t> counts,
                           int rank, int size) {
  return CheckVarying("reduce-scatter", input, output, output, input, counts, rank, size);
}

Status CheckScaling(DataType type) {
  if (IsFloatingPoint(type)) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("only floating point elements can be averaged or multiplied, not ", Name(type)));
}

Status CheckPeer(int peer, int rank, int size) {
  if (peer >= 0 && peer < size && peer != rank) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("rank ", rank, " of ", size, " cannot exchange messages with rank ", peer));
}

absl::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kAverage:
      return "average";
  }
  return "unknown";
}

absl::string_view Name(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kUint8:
      return "uint8";
  }
  return "unknown";
}

std::string TextOf(const Buffer& buffer) {
  return absl::StrCat(buffer.count, " ", Name(buffer.type));
}

std::string AllReduceText(const Buffer& buffer, const Reduction& reduction) {
  return absl::StrCat("all-reduce (", Name(reduction.op), ") of ", TextOf(buffer));
}

std::string ReduceText(const Buffer& buffer, const Reduction& reduction, int root) {
  return absl::StrCat("reduce (", Name(reduction.op), ") to rank ", root, " of ", TextOf(buffer));
}

std::string ReduceScatterText(const Buffer& output, const Reduction& reduction) {
  return absl::StrCat("reduce-scatter (", Name(reduction.op), ") of ", TextOf(output));
}

std::string ReduceScatterVaryingText(const Buffer& input, const Reduction& reduction,
                                     Span<const size_t> counts) {
  return absl::StrCat("reduce-scatter (", Name(reduction.op), ") of ", TextOf(input), " in parts ",
                      absl::StrJoin(counts, "+"));
}

std::string BroadcastText(const Buffer& buffer, int root) {
  return absl::StrCat("broadcast from rank ", root, " of ", TextOf(buffer));
}

std::string AllGatherText(const Buffer& input) {
  return absl::StrCat("all-gather of ", TextOf(input));
}

std::string AllGatherVaryingText(const Buffer& output, Span<const size_t> counts) {
  return absl::StrCat("all-gather of ", TextOf(output), " in parts ", absl::StrJoin(counts, "+"));
}

}  // namespace cadre::backend
