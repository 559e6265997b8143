// Arguments of C, which may be anything, as those of C++. Pure.
#ifndef CADRE_WORKER_RUNTIME_C_ARGUMENTS_H_
#define CADRE_WORKER_RUNTIME_C_ARGUMENTS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cadre.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::c {

// All of these fail with INVALID_ARGUMENT, and only with that.

// `name` is the argument's, for people.
Status NotNull(const void* pointer, const char* name);

// A longer one is cut to a year.
Result<std::chrono::nanoseconds> TimeoutOf(int64_t timeout_ms);

// Of a key, a value or a name. Bytes that are none may lie nowhere.
Result<std::string_view> TextOf(const char* text, const char* name);
Result<std::string_view> BytesOf(const void* bytes, size_t size, const char* name);

Result<ReduceOp> ReduceOpOf(cadre_reduce_op op);

// `count` elements for each of `ranks`. Elements without memory are not let through to the
// communicator, which takes them for an error that ends it.
Result<Buffer> BufferOf(const void* data, size_t count, cadre_data_type type, int ranks = 1);

}  // namespace cadre::c

#endif  // CADRE_WORKER_RUNTIME_C_ARGUMENTS_H_
