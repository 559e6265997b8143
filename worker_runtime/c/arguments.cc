#include "worker_runtime/c/arguments.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace cadre::c {

static_assert(static_cast<int>(DataType::kFloat32) == CADRE_FLOAT32);
static_assert(static_cast<int>(DataType::kFloat64) == CADRE_FLOAT64);
static_assert(static_cast<int>(DataType::kFloat16) == CADRE_FLOAT16);
static_assert(static_cast<int>(DataType::kInt32) == CADRE_INT32);
static_assert(static_cast<int>(DataType::kInt64) == CADRE_INT64);
static_assert(static_cast<int>(DataType::kUint8) == CADRE_UINT8);
static_assert(static_cast<int>(DataType::kBfloat16) == CADRE_BFLOAT16);
static_assert(static_cast<int>(ReduceOp::kSum) == CADRE_SUM);
static_assert(static_cast<int>(ReduceOp::kMax) == CADRE_MAX);
static_assert(static_cast<int>(ReduceOp::kMin) == CADRE_MIN);
static_assert(static_cast<int>(ReduceOp::kAverage) == CADRE_AVERAGE);

Status NotNull(const void* pointer, const char* name) {
  if (pointer != nullptr) return OkStatus();
  return InvalidArgumentError(absl::StrCat("the argument ", name, " is NULL"));
}

Result<std::chrono::nanoseconds> TimeoutOf(int64_t timeout_ms) {
  if (timeout_ms < 0) {
    return InvalidArgumentError(absl::StrCat(
        "a timeout of ", timeout_ms, " ms; every wait has an end, so it must be 0 or more"));
  }
  // As nanoseconds, added to a moment, more might not fit into 64 bits.
  constexpr std::chrono::milliseconds kYear = std::chrono::hours(24 * 365);
  return std::min(std::chrono::milliseconds(timeout_ms), kYear);
}

Result<std::string_view> TextOf(const char* text, const char* name) {
  const Status given = NotNull(text, name);
  if (!given.ok()) return given;
  return std::string_view(text);
}

Result<std::string_view> BytesOf(const void* bytes, size_t size, const char* name) {
  const Status given = size == 0 ? OkStatus() : NotNull(bytes, name);
  if (!given.ok()) return given;
  return std::string_view(static_cast<const char*>(bytes), size);
}

Result<ReduceOp> ReduceOpOf(cadre_reduce_op op) {
  if (op >= CADRE_SUM && op <= CADRE_AVERAGE) return static_cast<ReduceOp>(op);
  return InvalidArgumentError(absl::StrCat("no reduction has the number ", op, "; they are ",
                                           CADRE_SUM, " to ", CADRE_AVERAGE));
}

Result<Buffer> BufferOf(const void* data, size_t count, cadre_data_type type, int ranks) {
  if (type < CADRE_FLOAT32 || type > CADRE_BFLOAT16) {
    return InvalidArgumentError(absl::StrCat("no type of elements has the number ", type,
                                             "; they are ", CADRE_FLOAT32, " to ", CADRE_BFLOAT16));
  }
  const auto element = static_cast<DataType>(type);
  // No object is larger than what a difference of pointers can say.
  const size_t most = std::numeric_limits<ptrdiff_t>::max() / SizeOf(element) / ranks;
  if (count > most) {
    return InvalidArgumentError(
        absl::StrCat(count, " elements are more than memory has; was the count negative?"));
  }
  const Status given = count == 0 ? OkStatus() : NotNull(data, "for the elements");
  if (!given.ok()) return given;
  // What is only read was not const to begin with, or is not written to: communicators have one
  // kind of buffer for both.
  return Buffer{const_cast<void*>(data), count * ranks, element};
}

}  // namespace cadre::c
