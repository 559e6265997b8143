#include "rpc/unreached.h"

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(Unreached, TextsOfGrpc) {
  EXPECT_EQ(WhyUnreached("failed to connect to all addresses; last error: UNKNOWN: "
                         "ipv4:10.0.0.1:29400: Failed to connect to remote host: Connection "
                         "refused"),
            Unreached::kRefused);
  EXPECT_EQ(WhyUnreached("DNS resolution failed for node0:29400: C-ares status is not ..."),
            Unreached::kUnknownName);
  EXPECT_EQ(WhyUnreached("last error: UNKNOWN: Socket closed"), Unreached::kClosedWithoutAWord);
  EXPECT_EQ(WhyUnreached("last error: UNAVAILABLE: ipv4:10.0.0.1:80: Failed parsing HTTP/2"),
            Unreached::kNotGrpc);
  EXPECT_EQ(WhyUnreached("FD shutdown: connect() timed out"), Unreached::kTimedOut);
  EXPECT_EQ(WhyUnreached("Handshake read failed: timeout"), Unreached::kHandshake);
  EXPECT_EQ(WhyUnreached("Handshaker shutdown"), Unreached::kHandshakeGivenUp);
  EXPECT_EQ(WhyUnreached("failed to connect to all addresses; last error: UNKNOWN: "
                         "ipv4:10.0.0.1:29400: Custom verification check failed with error: "
                         "UNAUTHENTICATED: the server has another key"),
            Unreached::kOtherKey);
  EXPECT_EQ(WhyUnreached("something new"), Unreached::kOther);
}

TEST(Unreached, WithoutAConnectionACallHasNoEffect) {
  EXPECT_TRUE(NeverConnected("failed to connect to all addresses; last error: ..."));
  EXPECT_TRUE(NeverConnected("DNS resolution failed for node0:29400"));
  EXPECT_FALSE(NeverConnected("Socket closed"));
}

}  // namespace
}  // namespace cadre::rpc
