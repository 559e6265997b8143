// The store of cadre.h.
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre.h"
#include "cadre/worker.h"
#include "rendezvous/keyspace/limits.h"
#include "worker_runtime/c/arguments.h"
#include "worker_runtime/c/boundary.h"
#include "worker_runtime/c/handles.h"

static_assert(cadre::keyspace::kMaxValueBytes == CADRE_MAX_VALUE_BYTES);

using cadre::OkStatus;
using cadre::Status;
using cadre::c::BytesOf;
using cadre::c::Guarded;
using cadre::c::NotNull;
using cadre::c::TextOf;

cadre_status cadre_store_set(cadre_worker* worker, const char* key, const void* value,
                             size_t value_size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const std::string_view bytes, BytesOf(value, value_size, "value"));
    return worker->worker->Set(name, bytes);
  });
}

cadre_status cadre_store_get(cadre_worker* worker, const char* key, int64_t timeout_ms, void* value,
                             size_t capacity, size_t* value_size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    RETURN_IF_ERROR(NotNull(value_size, "value_size"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    if (capacity > 0) RETURN_IF_ERROR(NotNull(value, "value"));
    ASSIGN_OR_RETURN(const std::string found, worker->worker->Get(name, timeout));
    *value_size = found.size();
    if (found.size() > capacity) {
      return cadre::OutOfRangeError(absl::StrCat("the value of \"", key, "\" has ", found.size(),
                                                 " bytes, and there is room for ", capacity));
    }
    if (capacity > 0) memcpy(value, found.c_str(), std::min(found.size() + 1, capacity));
    return OkStatus();
  });
}

cadre_status cadre_store_add(cadre_worker* worker, const char* key, int64_t delta, int64_t* sum) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const int64_t afterwards, worker->worker->Add(name, delta));
    if (sum != nullptr) *sum = afterwards;
    return OkStatus();
  });
}

cadre_status cadre_store_compare_and_set(cadre_worker* worker, const char* key,
                                         const void* expected, size_t expected_size,
                                         const void* desired, size_t desired_size) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    ASSIGN_OR_RETURN(const std::string_view before, BytesOf(expected, expected_size, "expected"));
    ASSIGN_OR_RETURN(const std::string_view after, BytesOf(desired, desired_size, "desired"));
    return worker->worker->CompareAndSet(name, before, after).status();
  });
}

cadre_status cadre_store_delete(cadre_worker* worker, const char* key) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    ASSIGN_OR_RETURN(const std::string_view name, TextOf(key, "key"));
    return worker->worker->Delete(name);
  });
}
