#include "agent/torch_store/node_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

sockaddr_storage Peer(const char* address) {
  sockaddr_storage storage = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(1234);
  if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) return storage;
  storage = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_scope_id = 3;
  EXPECT_EQ(inet_pton(AF_INET6, address, &v6.sin6_addr), 1) << address;
  return storage;
}

TEST(NodeAddressesTest, NodesAloneAreTaken) {
  const auto nodes = NodeAddresses::Make("10.0.0.1", {"10.0.0.1", "10.0.0.2", "fe80::1%eth0"});
  ASSERT_OK(nodes);
  for (const char* address : {"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "fe80::1"}) {
    EXPECT_TRUE(nodes->Has(Peer(address))) << address;
  }
  for (const char* address : {"10.0.0.3", "127.0.0.1", "::1", "fe80::2", "::10.0.0.1"}) {
    EXPECT_FALSE(nodes->Has(Peer(address))) << address;
  }
  EXPECT_FALSE(nodes->Has(sockaddr_storage()));
}

TEST(NodeAddressesTest, NodesOfOneMachine) {
  const auto nodes = NodeAddresses::Make("127.0.0.1", {"127.0.0.1"});
  ASSERT_OK(nodes);
  EXPECT_TRUE(nodes->Has(Peer("127.0.0.1")));
  EXPECT_FALSE(nodes->Has(Peer("127.0.0.2")));
}

TEST(NodeAddressesTest, WhatDoesNotTellIsSaid) {
  EXPECT_THAT(NodeAddresses::Make("head", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"head\"")));
  EXPECT_THAT(NodeAddresses::Make("10.0.0.1", {"node2.cluster"}), Not(IsOk()));
  EXPECT_THAT(NodeAddresses::Make("10.0.0.1", {""}), Not(IsOk()));
  EXPECT_THAT(NodeAddresses::Make("10.0.0.1", {"127.0.0.1"}), Not(IsOk()));
  EXPECT_THAT(NodeAddresses::Make("::2", {"::1"}), Not(IsOk()));
}

TEST(NodeAddressesTest, InWords) {
  EXPECT_EQ(AddressText(Peer("10.0.0.1")), "10.0.0.1");
  EXPECT_EQ(AddressText(Peer("::ffff:10.0.0.1")), "10.0.0.1");
  EXPECT_EQ(AddressText(Peer("fe80::1")), "fe80::1");
  EXPECT_EQ(AddressText(sockaddr_storage()), "?");
}

}  // namespace
}  // namespace cadre::agent
