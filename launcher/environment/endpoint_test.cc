#include "launcher/environment/endpoint.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

TEST(EndpointTest, Forms) {
  const struct {
    const char* text;
    const char* host;
    int port;
  } kCases[] = {{"head", "head", 29400},
                {"head:1234", "head", 1234},
                {"10.0.0.1:80", "10.0.0.1", 80},
                {"[::1]:90", "::1", 90},
                {"[::1]", "::1", 29400},
                {"fe80::1", "fe80::1", 29400},
                {"fe80::1%lo", "fe80::1%lo", 29400}};
  for (const auto& c : kCases) {
    const auto endpoint = ParseEndpoint(c.text, kDefaultRendezvousPort);
    ASSERT_OK(endpoint);
    EXPECT_EQ(endpoint->host, c.host);
    EXPECT_EQ(endpoint->port, c.port);
  }
}

TEST(EndpointTest, Bad_NamesTheText) {
  for (const char* bad :
       {"", ":80", "h:", "h:0", "h:99999", "h:x", "[::1", "[::1]x", "http://127.0.0.1:33",
        "http://head", "a:b:c", "a:1,b:2", "[head]:1", "head/x:1"}) {
    EXPECT_THAT(ParseEndpoint(bad, 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("malformed endpoint '", bad, "'"))))
        << bad;
  }
}

TEST(EndpointTest, Several_AreKeptInOrder) {
  const auto endpoints = ParseEndpoints("a:1, [::1],b", 2);
  ASSERT_OK(endpoints);
  ASSERT_EQ(endpoints->size(), 3u);
  EXPECT_EQ((*endpoints)[0].host, "a");
  EXPECT_EQ((*endpoints)[0].port, 1);
  EXPECT_EQ((*endpoints)[1].host, "::1");
  EXPECT_EQ((*endpoints)[2].port, 2);
  EXPECT_THAT(ParseEndpoints("a,,b", 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the host is missing")));
  std::string many = "a";
  for (size_t i = 0; i < kEndpointsMax; ++i) many += ",a";
  EXPECT_THAT(ParseEndpoints(many, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 16")));
}

TEST(EndpointTest, WhatSaysWhereItIs) {
  for (const char* host :
       {"localhost", "LocalHost", "ip6-localhost", "127.0.1.1", "::1", "10.0.0.1"}) {
    EXPECT_TRUE(SaysWhereItIs(host)) << host;
  }
  for (const char* host : {"head", "head.example", "localhost1", "mylocalhost", ""}) {
    EXPECT_FALSE(SaysWhereItIs(host)) << host;
  }
}

TEST(EndpointTest, Loopback_IsHere) {
  for (const char* host : {"127.0.0.1", "localhost", "::1", "127.3.2.1"}) {
    const auto resolved = Resolve({host, 5});
    if (!resolved.ok()) continue;  // A machine without IPv6 has no ::1.
    EXPECT_TRUE(resolved->loopback) << host;
    EXPECT_TRUE(resolved->here) << host;
    EXPECT_EQ(resolved->port, 5);
  }
}

TEST(EndpointTest, DocumentationAddress_IsNotHere) {
  const auto resolved = Resolve({"192.0.2.1", 5});
  ASSERT_OK(resolved);
  EXPECT_FALSE(resolved->here);
  EXPECT_FALSE(resolved->loopback);
}

TEST(EndpointTest, UnknownName_IsUnavailableAndNamed) {
  EXPECT_THAT(Resolve({"nowhere.invalid", 5}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nowhere.invalid")));
}

TEST(EndpointTest, AddressTowardsLoopback_IsLoopback) {
  EXPECT_EQ(AddressTowards("127.0.0.1", 9), "127.0.0.1");
  EXPECT_EQ(AddressTowards("no-address", 9), "");
}

TEST(EndpointTest, HostIn_TakesBracketsOff) {
  EXPECT_EQ(HostIn("[::1]"), "::1");
  EXPECT_EQ(HostIn("::1"), "::1");
  EXPECT_EQ(HostIn("head"), "head");
  EXPECT_EQ(HostIn("[]"), "[]");
}

TEST(EndpointTest, HostPort_BracketsIpv6) {
  EXPECT_EQ(HostPort("::1", 2), "[::1]:2");
  EXPECT_EQ(HostPort("10.0.0.1", 2), "10.0.0.1:2");
}

}  // namespace
}  // namespace cadre::launcher
