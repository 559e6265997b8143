#include "agent/link/link_queue.h"

#include <cstdint>
#include <string>

#include "agent/core/server_session.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rpc/message_limits.h"

namespace cadre::agent {
namespace {

v1::NodeMessage Set(uint64_t id, size_t bytes) {
  v1::NodeMessage message;
  message.mutable_store()->set_request_id(id);
  message.mutable_store()->mutable_set()->set_value(std::string(bytes, 'x'));
  return message;
}

TEST(LinkQueue, SmallMessages_AreWrittenTogether) {
  LinkQueue queue;
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_OK(queue.Add(Set(id, 10)));
  ASSERT_OK(queue.Add(Set(4, rpc::kBundleBytesMax)));
  const v1::NodeMessage bundle = queue.TakeBundle();
  EXPECT_EQ(bundle.store().request_id(), 1u);
  ASSERT_EQ(bundle.more_size(), 2);
  EXPECT_EQ(bundle.more(1).store().request_id(), 3u);
  EXPECT_EQ(queue.TakeBundle().store().request_id(), 4u);
  EXPECT_TRUE(queue.empty());
}

TEST(LinkQueue, AStoreRequestThatIsTooLarge_IsAnsweredInItsTurn) {
  LinkQueue queue;
  ASSERT_OK(queue.Add(Set(1, 10)));
  ASSERT_OK(queue.Add(Set(2, rpc::kMessageBytesMax)));
  EXPECT_TRUE(queue.TakeRefused().empty());
  EXPECT_EQ(queue.TakeBundle().more_size(), 0);
  const std::vector<v1::NodeMessage> refused = queue.TakeRefused();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].store().request_id(), 2u);
  EXPECT_FALSE(refused[0].store().has_set());
  EXPECT_TRUE(queue.empty());
}

TEST(LinkQueue, AnotherMessageThatIsTooLarge_IsAnError) {
  LinkQueue queue;
  v1::NodeMessage message;
  message.mutable_leave()->set_reason(std::string(rpc::kMessageBytesMax, 'x'));
  EXPECT_THAT(queue.Add(message), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(LinkQueue, Bytes_AreBounded) {
  LinkQueue queue;
  absl::Status status;
  size_t added = 0;
  while (status.ok() && added < 100) {
    status = queue.Add(Set(added, rpc::kMessageBytesMax - 100));
    added += status.ok();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(added, kLinkQueueBytesMax / rpc::kMessageBytesMax);
  queue.TakeBundle();
  EXPECT_OK(queue.Add(Set(1, rpc::kMessageBytesMax - 100)));
}

// As the agent resends them after each Welcome, behind its Join.
//
// Fault (store): A node's connection drops while its workers have unanswered store operations ->
// All of them, up to 65,536 and 64 MiB, are sent again on the next connection; more are refused
// with RESOURCE_EXHAUSTED
TEST(LinkQueue, AllStoreOperationsThatMayBeUnansweredFit) {
  for (const size_t value : {0, 1000, 64 << 10}) {
    LinkQueue queue;
    v1::NodeMessage join;
    join.mutable_join()->set_node(std::string(rpc::kMessageBytesMax / 2, 'n'));
    ASSERT_OK(queue.Add(join));
    PendingStoreCalls calls;
    v1::NodeMessage message = Set(0, value);
    message.set_job(std::string(63, 'j'));
    message.set_generation(UINT64_MAX);
    message.set_server_id(UINT64_MAX);
    message.set_incarnation(UINT64_MAX);
    EXPECT_LE(message.ByteSizeLong(), message.store().ByteSizeLong() + kNodeMessageHeadBytesMax);
    for (uint64_t id = 1; calls.Add(message.store()).ok(); ++id) {
      ASSERT_OK(queue.Add(message)) << id << " of " << value << " bytes";
      message.mutable_store()->set_request_id(id);
    }
  }
}

}  // namespace
}  // namespace cadre::agent
