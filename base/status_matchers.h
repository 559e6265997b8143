// GoogleTest matchers for absl::Status and absl::StatusOr, which Abseil 20220623 does not have, and
// for worker_runtime's Status and Result.
#ifndef CADRE_BASE_STATUS_MATCHERS_H_
#define CADRE_BASE_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {

// The argument is a status or has one.
template <typename T>
auto StatusOf(const T& result) -> decltype(result.status()) {
  return result.status();
}
template <typename T>
auto StatusOf(const T& status) -> decltype(status.code(), status) {
  return status;
}

// EXPECT_THAT(Open(path), IsOk());
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// EXPECT_THAT(Open(path), StatusIs(StatusCode::kNotFound, HasSubstr("no such"))); the codes are
// compared by number, so that `code` and the status may be of two libraries.
MATCHER_P2(StatusIs, code, message, "") {
  *result_listener << StatusOf(arg).ToString();
  return static_cast<int>(StatusOf(arg).code()) == static_cast<int>(code) &&
         ::testing::ExplainMatchResult(message, std::string(StatusOf(arg).message()),
                                       result_listener);
}
MATCHER_P(StatusIs, code, "") {
  *result_listener << StatusOf(arg).ToString();
  return static_cast<int>(StatusOf(arg).code()) == static_cast<int>(code);
}

}  // namespace cadre

#define ASSERT_OK(expression) ASSERT_THAT((expression), ::cadre::IsOk())
#define EXPECT_OK(expression) EXPECT_THAT((expression), ::cadre::IsOk())

#endif  // CADRE_BASE_STATUS_MATCHERS_H_
