#include "cadre/status.h"

#include <cerrno>
#include <sstream>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/absl_types.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(StatusTest, IsOkUntilItIsNot) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status(StatusCode::kOk, "dropped"), OkStatus());
  const Status status = AbortedError("moved on");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "moved on");
  EXPECT_EQ(status.ToString(), "ABORTED: moved on");
  EXPECT_NE(status, AbortedError("stayed"));
  std::ostringstream out;
  out << status << ", " << OkStatus();
  EXPECT_EQ(out.str(), "ABORTED: moved on, OK");
}

TEST(StatusTest, UpdateKeepsTheFirstError) {
  Status status;
  status.Update(OkStatus());
  status.Update(InternalError("first"));
  status.Update(InternalError("second"));
  EXPECT_THAT(status, StatusIs(StatusCode::kInternal, "first"));
}

TEST(StatusTest, ErrnoBecomesTheCodeThatFits) {
  EXPECT_THAT(ErrnoToStatus(ENOENT, "x"), StatusIs(StatusCode::kNotFound, HasSubstr("x: No such")));
  EXPECT_THAT(ErrnoToStatus(EACCES, "x"), StatusIs(StatusCode::kPermissionDenied));
  EXPECT_THAT(ErrnoToStatus(ENOSPC, "x"), StatusIs(StatusCode::kResourceExhausted));
}

TEST(StatusTest, EveryCodeIsAbseils) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status theirs(static_cast<absl::StatusCode>(code), "why");
    const Status ours = theirs;
    EXPECT_EQ(StatusCodeName(ours.code()), absl::StatusCodeToString(theirs.code()));
    EXPECT_EQ(absl::Status(ours), theirs);
  }
}

}  // namespace
}  // namespace cadre
