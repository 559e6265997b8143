#include "agent/event_queue.h"

#include <poll.h>

#include <deque>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
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
  const std::deque<AgentEvent> events = (*queue)->TakeAll();
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

constexpr int kThreads = 4;
constexpr int kEach = 1000;

// So many threads, each of which pushes the event so often.
std::vector<std::thread> Pushing(EventQueue& queue, const AgentEvent& event) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&queue, event] {
      for (int j = 0; j < kEach; ++j) queue.Push(event);
    });
  }
  return threads;
}

TEST(EventQueue, ManyThreads_LoseNothing) {
  auto queue = EventQueue::Make();
  ASSERT_OK(queue);
  std::vector<std::thread> threads = Pushing(**queue, AgentTick{});
  size_t taken = 0;
  while (taken < kThreads * kEach) {
    pollfd wait = {(*queue)->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 10000), 1);
    taken += (*queue)->TakeAll().size();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, static_cast<size_t>(kThreads * kEach));
}

AgentEvent Answer(uint64_t request_id) {
  ServerSaid said;
  said.message.mutable_store()->set_request_id(request_id);
  return said;
}

uint64_t RequestOf(const AgentEvent& event) {
  const auto* asked = std::get_if<WorkerAsked>(&event);
  return asked != nullptr ? asked->request.request_id()
                          : std::get<ServerSaid>(event).message.store().request_id();
}

TEST(EventQueue, StoreEvents_AreHandledByThePosterWhileTheLoopRests) {
  std::vector<uint64_t> handled;
  bool look = false;
  auto queue = EventQueue::Make([&](const AgentEvent& event) {
    handled.push_back(RequestOf(event));
    return look;
  });
  ASSERT_OK(queue);
  (*queue)->Push(Answer(1));
  EXPECT_THAT(handled, testing::IsEmpty()) << "the loop does not rest";
  EXPECT_EQ((*queue)->TakeAll().size(), 1u);
  (*queue)->Rest();
  v1::StoreRequest request;
  request.set_request_id(2);
  ASSERT_OK((*queue)->PushRequest(request));
  (*queue)->Push(Answer(3));
  EXPECT_THAT(handled, testing::ElementsAre(2, 3));
  EXPECT_FALSE(Readable(**queue));
  look = true;
  (*queue)->Push(Answer(4));
  EXPECT_TRUE(Readable(**queue)) << "the handler wants the loop to look";
  EXPECT_TRUE((*queue)->TakeAll().empty());
  EXPECT_FALSE(Readable(**queue));
}

TEST(EventQueue, StoreEvents_DoNotOvertakeWhatIsTheLoops) {
  int handled = 0;
  auto queue = EventQueue::Make([&](const AgentEvent&) { return ++handled == 0; });
  ASSERT_OK(queue);
  (*queue)->Rest();
  (*queue)->Push(LinkUp{});
  (*queue)->Push(Answer(1));
  EXPECT_EQ(handled, 0);
  const std::deque<AgentEvent> events = (*queue)->TakeAll();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LinkUp>(events[0]));
}

// Of a request that is answered at once, within handling it.
TEST(EventQueue, WhatIsPostedWhileHandling_IsHandledNext) {
  std::vector<uint64_t> handled;
  EventQueue* posts_to = nullptr;
  auto queue = EventQueue::Make([&](const AgentEvent& event) {
    const uint64_t request = RequestOf(event);
    if (request == 1) posts_to->Push(Answer(2));
    if (request == 2) posts_to->Push(LinkUp{});
    handled.push_back(request);
    return false;
  });
  ASSERT_OK(queue);
  posts_to = queue->get();
  posts_to->Rest();
  posts_to->Push(Answer(1));
  EXPECT_THAT(handled, testing::ElementsAre(1, 2));
  EXPECT_TRUE(Readable(*posts_to));
  EXPECT_EQ(posts_to->TakeAll().size(), 1u);
}

TEST(EventQueue, ManyThreads_HandleOneAtATime) {
  // Guarded by the queue alone.
  int handled = 0;
  auto queue = EventQueue::Make([&](const AgentEvent&) {
    ++handled;
    return false;
  });
  ASSERT_OK(queue);
  std::vector<std::thread> threads = Pushing(**queue, Answer(1));
  int taken = 0;
  for (int i = 0; i < kEach; ++i) {
    taken += static_cast<int>((*queue)->TakeAll().size());
    (*queue)->Rest();
  }
  for (std::thread& thread : threads) thread.join();
  taken += static_cast<int>((*queue)->TakeAll().size());
  EXPECT_EQ(handled + taken, kThreads * kEach);
}

}  // namespace
}  // namespace cadre
