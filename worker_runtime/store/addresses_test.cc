#include "worker_runtime/store/addresses.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::store {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AddressesTest, NumbersMeanThemselves) {
  auto addresses = AddressesOf("127.0.0.2");
  ASSERT_OK(addresses);
  EXPECT_THAT(*addresses, ElementsAre("127.0.0.2"));
  addresses = AddressesOf("::1");
  ASSERT_OK(addresses);
  EXPECT_THAT(*addresses, ElementsAre("::1"));
}

TEST(AddressesTest, NamesAreLookedUp) {
  const auto addresses = AddressesOf("localhost");
  ASSERT_OK(addresses);
  EXPECT_THAT(*addresses, Contains("127.0.0.1"));
  EXPECT_THAT(AddressesOf("no such host"),
              StatusIs(StatusCode::kUnavailable, HasSubstr("'no such host'")));
}

TEST(AddressesTest, WhoseTheyAre) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(NamesLoopback(host)) << host;
  }
  for (const char* host : {"127.0.0.1.example", "node1", "10.0.0.1", ""}) {
    EXPECT_FALSE(NamesLoopback(host)) << host;
  }
  EXPECT_TRUE(IsLoopback("127.0.1.1") && IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("10.0.0.1"));
  EXPECT_TRUE(IsOwn("127.0.1.1"));
  // For documentation: nobody has it.
  EXPECT_FALSE(IsOwn("192.0.2.1"));
}

TEST(AddressesTest, Endpoints) {
  EXPECT_EQ(EndpointAt("10.0.0.1", 80), "10.0.0.1:80");
  EXPECT_EQ(EndpointAt("fe80::1", 80), "[fe80::1]:80");
}

}  // namespace
}  // namespace cadre::store
