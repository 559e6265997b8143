#include "rpc/status_details.h"

#include "base/status_matchers.h"

namespace cadre::rpc {
namespace {

TEST(StatusDetails, AServerThatDoesNotLeadIsKnownByItsDetailAndNotByItsText) {
  const absl::Status status = NotLeading("this server stands in reserve");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(IsNotLeading(status));
  EXPECT_FALSE(IsNotLeading(absl::UnavailableError(status.message())));
}

TEST(StatusDetails, BytesOfAnotherVersionAreNoDetail) {
  EXPECT_EQ(SerializedDetails(absl::AbortedError("moved on")), "");
  const absl::Status strange = WithSerializedDetails(absl::UnavailableError("x"), "\xff\xff");
  EXPECT_FALSE(IsNotLeading(strange));
  EXPECT_EQ(WithSerializedDetails(absl::UnavailableError("x"), ""), absl::UnavailableError("x"));
}

}  // namespace
}  // namespace cadre::rpc
