#include "agent/local/store_calls.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

rpc::Store SetOf(const std::string& job, const std::string& key) {
  rpc::Store call;
  call.job = job;
  call.operation = keyspace::Set{key, "v"};
  return call;
}

TEST(StoreCallsTest, WhatNoRequestCanCarryIsRefusedHere) {
  std::vector<rpc::WorkerReply> replies;
  StoreCalls calls([&](uint64_t, const rpc::WorkerReply& reply) { replies.push_back(reply); });
  EXPECT_TRUE(calls.Take(1, 7, SetOf("j", "caf\xc3\xa9")).has_value());
  EXPECT_FALSE(calls.Take(1, 8, SetOf("j", "k\xff")).has_value());
  EXPECT_FALSE(calls.Take(1, 9, SetOf("\xff", "k")).has_value());
  ASSERT_EQ(replies.size(), 2u);
  for (const rpc::WorkerReply& reply : replies) {
    EXPECT_EQ(reply.code, absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(reply.message, HasSubstr("is not UTF-8"));
  }
}

}  // namespace
}  // namespace cadre::agent
