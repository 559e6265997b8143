#include "worker_runtime/c/boundary.h"

#include <exception>
#include <new>
#include <string>

#include "base/version.h"

namespace cadre::c {
namespace {

constexpr char kNoMemory[] = "there is no memory for this call";

// What cadre_last_error() gives: the string, or a text that needs no memory.
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
    Remember("an exception that does not say what it is");
  }
  return CADRE_INTERNAL;
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
