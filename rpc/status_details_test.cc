#include "rpc/status_details.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(StatusDetails, AServerThatDoesNotLeadIsKnownByItsDetailAndNotByItsText) {
  const absl::Status status = NotLeading("this server is a standby");
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

TEST(Unreached, TextsOfGrpc) {
  EXPECT_EQ(ConnectErrorOf("failed to connect to all addresses; last error: UNKNOWN: "
                           "ipv4:10.0.0.1:29400: Failed to connect to remote host: Connection "
                           "refused"),
            ConnectError::kRefused);
  EXPECT_EQ(ConnectErrorOf("DNS resolution failed for node0:29400: C-ares status is not ..."),
            ConnectError::kUnknownName);
  EXPECT_EQ(ConnectErrorOf("last error: UNKNOWN: Socket closed"), ConnectError::kClosedSilently);
  EXPECT_EQ(ConnectErrorOf("last error: UNAVAILABLE: ipv4:10.0.0.1:80: Failed parsing HTTP/2"),
            ConnectError::kNotGrpc);
  EXPECT_EQ(ConnectErrorOf("FD shutdown: connect() timed out"), ConnectError::kTimedOut);
  EXPECT_EQ(ConnectErrorOf("Handshake read failed: timeout"), ConnectError::kHandshake);
  EXPECT_EQ(ConnectErrorOf("Handshaker shutdown"), ConnectError::kHandshakeTimedOut);
  EXPECT_EQ(ConnectErrorOf("failed to connect to all addresses; last error: UNKNOWN: "
                           "ipv4:10.0.0.1:29400: Custom verification check failed with error: "
                           "UNAUTHENTICATED: the server has another key"),
            ConnectError::kOtherKey);
  EXPECT_EQ(ConnectErrorOf("something new"), ConnectError::kOther);
}

TEST(Unreached, WithoutAConnectionACallHasNoEffect) {
  EXPECT_TRUE(NeverConnected("failed to connect to all addresses; last error: ..."));
  EXPECT_TRUE(NeverConnected("DNS resolution failed for node0:29400"));
  EXPECT_FALSE(NeverConnected("Socket closed"));
}

}  // namespace

}  // namespace cadre::rpc
