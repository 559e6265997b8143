// The boundary to C: errors, exceptions and arguments.
#include "worker_runtime/c/boundary.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/version.h"

namespace cadre::c {
namespace {

constexpr char kNoMemory[] = "there is no memory for this call";

// The result of cadre_last_error(): the string, or a text that needs no memory.
thread_local std::string message;
thread_local const char* last_error = "";

void Remember(const char* text) noexcept {
  try {
    message = text;
    last_error = message.c_str();
  } catch (...) {
    last_error = kNoMemory;
  }
}

}  // namespace

cadre_status Returned(const Status& status) noexcept {
  if (!status.ok()) Remember(status.message().c_str());
  return static_cast<cadre_status>(status.code());
}

cadre_status ReturnedForException() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    last_error = kNoMemory;
    return CADRE_RESOURCE_EXHAUSTED;
  } catch (const std::exception& exception) {
    Remember(exception.what());
  } catch (...) {
    Remember("an exception of an unknown type was thrown");
  }
  return CADRE_INTERNAL;
}

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
    return InvalidArgumentError(
        absl::StrCat("a timeout of ", timeout_ms,
                     " ms; it must be 0 or more, because a wait without an end is not supported"));
  }
  // A longer timeout in nanoseconds, added to a point in time, might not fit into 64 bits.
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
  // No object is larger than a difference of pointers can express.
  const size_t most = std::numeric_limits<ptrdiff_t>::max() / SizeOf(element) / ranks;
  if (count > most) {
    return InvalidArgumentError(
        absl::StrCat(count, " elements are more than memory has; was the count negative?"));
  }
  const Status given = count == 0 ? OkStatus() : NotNull(data, "for the elements");
  if (!given.ok()) return given;
  // Const data is only read: communicators have one kind of buffer for input and output.
  return Buffer{const_cast<void*>(data), count * ranks, element};
}

}  // namespace cadre::c

using cadre::StatusCode;
static_assert(static_cast<int>(StatusCode::kOk) == CADRE_OK);
static_assert(static_cast<int>(StatusCode::kCancelled) == CADRE_CANCELLED);
static_assert(static_cast<int>(StatusCode::kUnknown) == CADRE_UNKNOWN);
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == CADRE_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kDeadlineExceeded) == CADRE_DEADLINE_EXCEEDED);
static_assert(static_cast<int>(StatusCode::kNotFound) == CADRE_NOT_FOUND);
static_assert(static_cast<int>(StatusCode::kAlreadyExists) == CADRE_ALREADY_EXISTS);
static_assert(static_cast<int>(StatusCode::kPermissionDenied) == CADRE_PERMISSION_DENIED);
static_assert(static_cast<int>(StatusCode::kResourceExhausted) == CADRE_RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(StatusCode::kFailedPrecondition) == CADRE_FAILED_PRECONDITION);
static_assert(static_cast<int>(StatusCode::kAborted) == CADRE_ABORTED);
static_assert(static_cast<int>(StatusCode::kOutOfRange) == CADRE_OUT_OF_RANGE);
static_assert(static_cast<int>(StatusCode::kUnimplemented) == CADRE_UNIMPLEMENTED);
static_assert(static_cast<int>(StatusCode::kInternal) == CADRE_INTERNAL);
static_assert(static_cast<int>(StatusCode::kUnavailable) == CADRE_UNAVAILABLE);
static_assert(static_cast<int>(StatusCode::kDataLoss) == CADRE_DATA_LOSS);
static_assert(static_cast<int>(StatusCode::kUnauthenticated) == CADRE_UNAUTHENTICATED);

const char* cadre_status_name(cadre_status status) {
  if (status < CADRE_OK || status > CADRE_UNAUTHENTICATED) status = CADRE_UNKNOWN;
  return cadre::StatusCodeName(static_cast<StatusCode>(status));
}

const char* cadre_last_error() { return cadre::c::last_error; }

const char* cadre_version() { return cadre::kVersion; }
