// The outcome of a call: OK, or a code and a human-readable line. Codes have the names and numbers
// of gRPC and Abseil, so that either can be converted to the other.
#ifndef CADRE_STATUS_H_
#define CADRE_STATUS_H_

#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

namespace cadre {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// For example "ABORTED".
const char* StatusCodeName(StatusCode code);

// Converts a status of another library, such as absl::Status, to ours and back. A specialization
// has
//   static Status From(const Foreign&);
//   static Foreign To(const Status&);
// and makes both conversions implicit. The library itself defines none for its users.
template <typename Foreign>
struct StatusConversion;

// Copies are cheap: an OK status is a null pointer, and errors share their state. Different objects
// may be used by different threads.
class [[nodiscard]] Status {
 public:
  // OK.
  Status() = default;
  // `message` is dropped if the code is kOk.
  Status(StatusCode code, std::string message);
  template <typename Foreign, typename = decltype(StatusConversion<Foreign>::From)>
  Status(const Foreign& foreign)  // NOLINT: implicit, so that either kind can be returned
      : Status(StatusConversion<Foreign>::From(foreign)) {}
  template <typename Foreign, typename = decltype(StatusConversion<Foreign>::To)>
  operator Foreign() const {  // NOLINT: as above
    return StatusConversion<Foreign>::To(*this);
  }

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const { return state_ == nullptr ? StatusCode::kOk : state_->code; }
  // Empty if ok(). Valid as long as this object.
  const std::string& message() const;
  // For example "ABORTED: the generation has moved on"; or "OK".
  std::string ToString() const;

  // Tells readers and the compiler that this status is ignored on purpose.
  void IgnoreError() const {}

  // Becomes `other` if this is OK, so that the first error is kept.
  void Update(const Status& other) {
    if (ok()) state_ = other.state_;
  }

  // Compares code and message.
  friend bool operator==(const Status& a, const Status& b) {
    return a.code() == b.code() && a.message() == b.message();
  }
  friend bool operator!=(const Status& a, const Status& b) { return !(a == b); }

 private:
  struct State {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const State> state_;
};

// Writes ToString().
std::ostream& operator<<(std::ostream& out, const Status& status);

inline Status OkStatus() { return Status(); }
inline Status CancelledError(std::string message) {
  return Status(StatusCode::kCancelled, std::move(message));
}
inline Status UnknownError(std::string message) {
  return Status(StatusCode::kUnknown, std::move(message));
}
inline Status InvalidArgumentError(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
inline Status DeadlineExceededError(std::string message) {
  return Status(StatusCode::kDeadlineExceeded, std::move(message));
}
inline Status NotFoundError(std::string message) {
  return Status(StatusCode::kNotFound, std::move(message));
}
inline Status AlreadyExistsError(std::string message) {
  return Status(StatusCode::kAlreadyExists, std::move(message));
}
inline Status PermissionDeniedError(std::string message) {
  return Status(StatusCode::kPermissionDenied, std::move(message));
}
inline Status ResourceExhaustedError(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
inline Status FailedPreconditionError(std::string message) {
  return Status(StatusCode::kFailedPrecondition, std::move(message));
}
inline Status AbortedError(std::string message) {
  return Status(StatusCode::kAborted, std::move(message));
}
inline Status OutOfRangeError(std::string message) {
  return Status(StatusCode::kOutOfRange, std::move(message));
}
inline Status UnimplementedError(std::string message) {
  return Status(StatusCode::kUnimplemented, std::move(message));
}
inline Status InternalError(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}
inline Status UnavailableError(std::string message) {
  return Status(StatusCode::kUnavailable, std::move(message));
}
inline Status DataLossError(std::string message) {
  return Status(StatusCode::kDataLoss, std::move(message));
}
inline Status UnauthenticatedError(std::string message) {
  return Status(StatusCode::kUnauthenticated, std::move(message));
}
// Returns the code that fits `error_number` (errno), with a message like "WHAT: No such file or
// directory".
Status ErrnoToStatus(int error_number, const std::string& what);

}  // namespace cadre

#endif  // CADRE_STATUS_H_
