// GoogleTest matchers for absl::Status and absl::StatusOr, which Abseil 20220623 does not have.
#ifndef CADRE_BASE_STATUS_MATCHERS_H_
#define CADRE_BASE_STATUS_MATCHERS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// EXPECT_THAT(Open(path), IsOk());
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// EXPECT_THAT(Open(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such")));
MATCHER_P2(StatusIs, code, message, "") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         ::testing::ExplainMatchResult(message, std::string(StatusOf(arg).message()),
                                       result_listener);
}
MATCHER_P(StatusIs, code, "") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}

}  // namespace cadre

#define ASSERT_OK(expression) ASSERT_THAT((expression), ::cadre::IsOk())
#define EXPECT_OK(expression) EXPECT_THAT((expression), ::cadre::IsOk())

#endif  // CADRE_BASE_STATUS_MATCHERS_H_
