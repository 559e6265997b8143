#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/tcp_socket.h"

namespace cadre::store {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AddressesTest, NumbersMeanThemselves) {
  auto addresses = sockets::AddressesOf("127.0.0.2");
  ASSERT_OK(addresses);
  EXPECT_THAT(*addresses, ElementsAre("127.0.0.2"));
  addresses = sockets::AddressesOf("::1");
  ASSERT_OK(addresses);
  EXPECT_THAT(*addresses, ElementsAre("::1"));
}

TEST(AddressesTest, NamesAreLookedUp) {
  const auto addresses = sockets::AddressesOf("localhost");
  ASSERT_OK(addresses);
  EXPECT_THAT(*addresses, Contains("127.0.0.1"));
  EXPECT_THAT(sockets::AddressesOf("no such host"),
              StatusIs(StatusCode::kUnavailable, HasSubstr("'no such host'")));
}

TEST(AddressesTest, WhoseTheyAre) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(sockets::NamesLoopback(host)) << host;
  }
  for (const char* host : {"127.0.0.1.example", "node1", "10.0.0.1", ""}) {
    EXPECT_FALSE(sockets::NamesLoopback(host)) << host;
  }
  EXPECT_TRUE(sockets::IsLoopback("127.0.1.1") && sockets::IsLoopback("::1"));
  EXPECT_FALSE(sockets::IsLoopback("10.0.0.1"));
  EXPECT_TRUE(sockets::IsOwn("127.0.1.1"));
  // An address that is reserved for documentation, so no host has it.
  EXPECT_FALSE(sockets::IsOwn("192.0.2.1"));
}

TEST(AddressesTest, Endpoints) {
  EXPECT_EQ(sockets::EndpointAt("10.0.0.1", 80), "10.0.0.1:80");
  EXPECT_EQ(sockets::EndpointAt("fe80::1", 80), "[fe80::1]:80");
}

}  // namespace

}  // namespace cadre::store
