// The boundary to C: checks and converts arguments, converts statuses to numbers and messages, and
// lets no exception escape.
#ifndef CADRE_WORKER_RUNTIME_C_BOUNDARY_H_
#define CADRE_WORKER_RUNTIME_C_BOUNDARY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cadre.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::c {

// These check and convert arguments. All of them fail with INVALID_ARGUMENT, and only with that.

// `name` is the argument's name in messages.
Status NotNull(const void* pointer, const char* name);

// Timeouts over a year are cut to a year.
Result<std::chrono::nanoseconds> TimeoutOf(int64_t timeout_ms);

// For keys, values and names. Empty bytes may have a null pointer.
Result<std::string_view> TextOf(const char* text, const char* name);
Result<std::string_view> BytesOf(const void* bytes, size_t size, const char* name);

Result<ReduceOp> ReduceOpOf(cadre_reduce_op op);

// A buffer of `count` elements for each of `ranks`. Elements at a null pointer are rejected here,
// since the communicator would treat them as an error that ends it.
Result<Buffer> BufferOf(const void* data, size_t count, cadre_data_type type, int ranks = 1);

// Returns the status's number; an error's message becomes this thread's last error.
cadre_status Returned(const Status& status) noexcept;

// As above, for the exception that is being handled: RESOURCE_EXHAUSTED for std::bad_alloc, else
// INTERNAL with its message.
cadre_status ReturnedForException() noexcept;

// Runs `body`, which returns a Status, and converts the result.
template <typename Body>
cadre_status Guarded(const Body& body) noexcept {
  try {
    return Returned(body());
  } catch (...) {
    return ReturnedForException();
  }
}

}  // namespace cadre::c

#endif  // CADRE_WORKER_RUNTIME_C_BOUNDARY_H_
