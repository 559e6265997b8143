#include "agent/link/link_status.h"

#include <string>

#include "base/status_matchers.h"
#include "rpc/status_details.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEndpoint[] = "node0:29400";

absl::Status ConnectError(const char* text) {
  return DescribeEnd(kEndpoint, absl::UnavailableError(text), false);
}

TEST(LinkStatus, GrpcTextsBecomeReadable) {
  EXPECT_EQ(
      ConnectError("failed to connect to all addresses; last error: UNKNOWN: "
                   "ipv4:10.0.0.1:29400: Failed to connect to remote host: Connection refused"),
      absl::UnavailableError("cannot reach node0:29400: connection refused"));
  EXPECT_THAT(ConnectError("DNS resolution failed for node0:29400: C-ares status is not ..."),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("cannot reach node0:29400: the name does not resolve")));
  EXPECT_THAT(
      ConnectError("failed to connect to all addresses; last error: UNKNOWN: Socket closed"),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(": the connection was closed")));
  EXPECT_THAT(ConnectError("last error: UNAVAILABLE: ipv4:10.0.0.1:80: Failed parsing HTTP/2"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not a cadre server")));
  EXPECT_THAT(ConnectError("last error: Trying to connect an http1.x server"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("node0:29400 answers, but is not a cadre server")));
}

TEST(LinkStatus, AServerWithAnotherKeyIsRefusedAsItsRefusalWouldBe) {
  EXPECT_THAT(ConnectError("failed to connect to all addresses; last error: UNKNOWN: "
                           "ipv4:10.0.0.1:29400: Custom verification check failed with error: "
                           "UNAUTHENTICATED: the server has another key"),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("node0:29400 does not have the key that the token names"),
                             HasSubstr("was not given the token"))));
}

TEST(LinkStatus, AServerThatDoesNotLeadWasReached) {
  for (const std::string text : {"this server is a standby: node1:29400 leads",
                                 "this server no longer leads: Connection refused by etcd"}) {
    EXPECT_EQ(DescribeEnd(kEndpoint, rpc::NotLeading(text), false),
              absl::UnavailableError("node0:29400: " + text));
  }
}

TEST(LinkStatus, OtherGrpcServersAreNamedSo) {
  for (const absl::Status& status : {absl::OkStatus(), absl::UnimplementedError("unknown")}) {
    EXPECT_THAT(DescribeEnd(kEndpoint, status, false),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not a cadre server")));
  }
}

TEST(LinkStatus, AnOpenStreamThatEndsIsUnavailable) {
  EXPECT_THAT(DescribeEnd(kEndpoint, absl::OkStatus(), true),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed the stream")));
  EXPECT_THAT(DescribeEnd(kEndpoint, absl::UnavailableError("Socket closed"), true),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("lost the connection"), HasSubstr("Socket closed"))));
}

TEST(LinkStatus, OnlyAMachineThatAnswersRefuses) {
  EXPECT_TRUE(IsRefused(absl::UnavailableError(
      "last error: UNKNOWN: ipv4:10.0.0.1:29400: Failed to connect to remote host: Connection "
      "refused")));
  EXPECT_FALSE(IsRefused(absl::UnavailableError("last error: UNKNOWN: Socket closed")));
  EXPECT_FALSE(IsRefused(absl::UnavailableError("connection attempt timed out")));
  EXPECT_FALSE(IsRefused(absl::UnauthenticatedError("Connection refused")));
}

TEST(LinkStatus, WhatTheServerSaysStays) {
  EXPECT_EQ(DescribeEnd(kEndpoint, absl::UnauthenticatedError("wrong"), false),
            absl::UnauthenticatedError("the server at node0:29400: wrong"));
}

TEST(LinkStatus, Endpoints) {
  for (const char* good : {"a:1", "127.0.0.1:29400", "[::1]:65535"}) {
    EXPECT_THAT(CheckEndpoint(good), IsOk()) << good;
  }
  for (const char* bad : {"", "a", ":1", "a:", "a:0", "a:65536", "a:x", "a:-1"}) {
    EXPECT_THAT(CheckEndpoint(bad), Not(IsOk())) << bad;
  }
}

TEST(LinkStatus, OnlyTheseAreFinal) {
  EXPECT_TRUE(IsFinal(absl::UnauthenticatedError("")));
  EXPECT_TRUE(IsFinal(absl::PermissionDeniedError("")));
  EXPECT_TRUE(IsFinal(absl::InvalidArgumentError("")));
  EXPECT_FALSE(IsFinal(absl::UnavailableError("")));
  EXPECT_FALSE(IsFinal(absl::ResourceExhaustedError("")));
}

}  // namespace
}  // namespace cadre::agent
