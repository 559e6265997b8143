// A value, or the error status that explains why there is none.
#ifndef CADRE_RESULT_H_
#define CADRE_RESULT_H_

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>

#include "cadre/status.h"

namespace cadre {

//   Result<std::string> content = Read(path);
//   if (!content.ok()) return content.status();
//   Use(*content);
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  // Holds an error, UNKNOWN, until a value is assigned.
  Result() : status_(StatusCode::kUnknown, "no result yet") {}
  // From a value, or anything convertible to it.
  template <typename U = T, typename = std::enable_if_t<std::is_convertible_v<U&&, T> &&
                                                        !std::is_same_v<std::decay_t<U>, Result> &&
                                                        !std::is_convertible_v<U&&, Status>>>
  Result(U&& value) : value_(std::forward<U>(value)) {}  // NOLINT: implicit, so that it is returned
  // From an error. An OK status is a programming mistake, and becomes INTERNAL.
  template <typename S,
            typename = std::enable_if_t<std::is_convertible_v<S&&, Status> &&
                                        !std::is_same_v<std::decay_t<S>, Result>>,
            typename = void>
  Result(S&& error) : status_(std::forward<S>(error)) {  // NOLINT: as above
    if (status_.ok()) status_ = InternalError("a result was made from a status that is OK");
  }
  // From a result of a type that converts to T, such as a pointer to a derived class.
  template <typename U,
            typename = std::enable_if_t<!std::is_same_v<U, T> && std::is_convertible_v<U&&, T>>>
  Result(Result<U>&& other) : status_(other.status()) {  // NOLINT: as above
    if (other.ok()) value_ = *std::move(other);
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }
  // See Status::IgnoreError().
  void IgnoreError() const {}

  // These require ok(); otherwise they print the status and abort the process.
  T& operator*() & { return *Checked().value_; }
  const T& operator*() const& { return *Checked().value_; }
  T&& operator*() && { return *std::move(Checked().value_); }
  T* operator->() { return &*Checked().value_; }
  const T* operator->() const { return &*Checked().value_; }
  T& value() & { return **this; }
  const T& value() const& { return **this; }
  T&& value() && { return *std::move(*this); }
  template <typename U>
  T value_or(U&& otherwise) const& {
    return ok() ? *value_ : static_cast<T>(std::forward<U>(otherwise));
  }

 private:
  Result& Checked() { return const_cast<Result&>(std::as_const(*this).Checked()); }
  const Result& Checked() const {
    if (!ok()) {
      std::fprintf(stderr, "cadre: the value of a result that is %s\n", status_.ToString().c_str());
      std::abort();
    }
    return *this;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace cadre

#endif  // CADRE_RESULT_H_
