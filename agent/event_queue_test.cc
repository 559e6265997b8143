#include "agent/event_queue.h"

#include <poll.h>

#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

bool Readable(const EventQueue& queue) {
  pollfd wait = {queue.fd(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

TEST(EventQueue, Push_MakesItReadableUntilAllAreTaken) {
  auto queue = EventQueue::Make();
  ASSERT_OK(queue);
  EXPECT_FALSE(Readable(**queue));
  (*queue)->Push(LinkUp{});
  (*queue)->Push(SignalReceived{2});
  EXPECT_TRUE(Readable(**queue));
  const std::vector<AgentEvent> events = (*queue)->TakeAll();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LinkUp>(events[0]));
  EXPECT_FALSE(Readable(**queue));
  EXPECT_TRUE((*queue)->TakeAll().empty());
}

TEST(EventQueue, Limits_RequestsAreRefusedFirst_OthersOverflow) {
  auto queue = EventQueue::Make();
  ASSERT_OK(queue);
  for (size_t i = 0; i < kMaxQueuedRequests; ++i) ASSERT_OK((*queue)->PushRequest({}));
  EXPECT_THAT((*queue)->PushRequest({}), StatusIs(absl::StatusCode::kResourceExhausted));
  for (size_t i = kMaxQueuedRequests; i < kMaxQueuedEvents; ++i) (*queue)->Push(AgentTick{});
  EXPECT_FALSE((*queue)->overflowed());
  (*queue)->Push(AgentTick{});
  EXPECT_TRUE((*queue)->overflowed());
  EXPECT_EQ((*queue)->TakeAll().size(), kMaxQueuedEvents);
}

TEST(EventQueue, ManyThreads_LoseNothing) {
  auto queue = EventQueue::Make();
  ASSERT_OK(queue);
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&queue] {
      for (int j = 0; j < kEach; ++j) (*queue)->Push(AgentTick{});
    });
  }
  size_t taken = 0;
  while (taken < kThreads * kEach) {
    pollfd wait = {(*queue)->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 10000), 1);
    taken += (*queue)->TakeAll().size();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, static_cast<size_t>(kThreads * kEach));
}

}  // namespace
}  // namespace cadre
