#include "agent/core/store_calls.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

v1::StoreRequest Request(uint64_t client, uint64_t id) {
  v1::StoreRequest request;
  request.set_client(client);
  request.set_request_id(id);
  request.mutable_get()->set_key("k");
  return request;
}

v1::StoreReply Reply(uint64_t client, uint64_t id) {
  v1::StoreReply reply;
  reply.set_client(client);
  reply.set_request_id(id);
  return reply;
}

TEST(PendingStoreCalls, Add_SameIdOfTwoClients_AreTwoCalls) {
  PendingStoreCalls calls;
  EXPECT_EQ(calls.Add(Request(1, 7)).value(), true);
  EXPECT_EQ(calls.Add(Request(2, 7)).value(), true);
  EXPECT_EQ(calls.Add(Request(1, 7)).value(), false);
  EXPECT_EQ(calls.All().size(), 2u);
}

TEST(PendingStoreCalls, Answered_OnlyOnce) {
  PendingStoreCalls calls;
  ASSERT_OK(calls.Add(Request(1, 7)));
  EXPECT_FALSE(calls.Answered(Reply(2, 7)));
  EXPECT_TRUE(calls.Answered(Reply(1, 7)));
  EXPECT_FALSE(calls.Answered(Reply(1, 7)));
}

TEST(PendingStoreCalls, FailAll_RefusesEachAndForgetsThem) {
  PendingStoreCalls calls;
  ASSERT_OK(calls.Add(Request(1, 7)));
  ASSERT_OK(calls.Add(Request(1, 8)));
  const auto replies = calls.FailAll(absl::AbortedError("over"));
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].request_id(), 8u);
  EXPECT_EQ(replies[1].client(), 1u);
  EXPECT_EQ(replies[1].code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_TRUE(calls.All().empty());
}

TEST(PendingStoreCalls, LimitOfCalls_RefusesTheNextOne) {
  PendingStoreCalls calls;
  for (uint64_t i = 0; i < kMaxPendingStoreCalls; ++i) ASSERT_OK(calls.Add(Request(1, i)));
  EXPECT_THAT(calls.Add(Request(2, 1)), StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_TRUE(calls.Answered(Reply(1, 0)));
  EXPECT_OK(calls.Add(Request(2, 1)));
}

TEST(PendingStoreCalls, LimitOfBytes_RefusesTheNextOne) {
  PendingStoreCalls calls;
  v1::StoreRequest large = Request(1, 0);
  large.mutable_set()->set_value(std::string(1 << 20, 'x'));
  uint64_t taken = 0;
  while (taken <= 64) {
    large.set_request_id(taken + 1);
    if (!calls.Add(large).ok()) break;
    ++taken;
  }
  EXPECT_EQ(taken, 63u);
}

}  // namespace
}  // namespace cadre::agent
