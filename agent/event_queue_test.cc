#include "agent/event_queue.h"

#include <poll.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

bool Readable(const EventQueue& queue) {
  pollfd wait = {queue.fd(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

constexpr MonoTime kEver = MonoTime::Never();
MonoTime NeverDue() { return kEver; }

// A queue that keeps what it handles.
class EventQueueTest : public ::testing::Test {
 protected:
  std::unique_ptr<EventQueue> Make(std::function<MonoTime()> due = nullptr) {
    auto queue = EventQueue::Make([this](const AgentEvent& event) { handled_.push_back(event); },
                                  std::move(due));
    EXPECT_OK(queue);
    return *std::move(queue);
  }

  std::vector<AgentEvent> handled_;
};

TEST_F(EventQueueTest, Push_MakesItReadableUntilAllAreTaken) {
  const auto queue = Make();
  EXPECT_FALSE(Readable(*queue));
  queue->Push(LinkUp{});
  queue->Push(SignalReceived{2});
  EXPECT_TRUE(Readable(*queue));
  EXPECT_TRUE(handled_.empty());
  queue->HandleAll();
  ASSERT_EQ(handled_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LinkUp>(handled_[0]));
  EXPECT_FALSE(Readable(*queue));
  queue->HandleAll();
  EXPECT_EQ(handled_.size(), 2u);
}

TEST_F(EventQueueTest, Limits_OneMoreOverflows) {
  const auto queue = Make();
  for (size_t i = 0; i < kMaxQueuedEvents; ++i) queue->Push(AgentTick{});
  EXPECT_FALSE(queue->overflowed());
  queue->Push(AgentTick{});
  EXPECT_TRUE(queue->overflowed());
  queue->HandleAll();
  EXPECT_EQ(handled_.size(), kMaxQueuedEvents);
}

constexpr size_t kThreads = 4, kEach = 1000;

// So many threads, each of which pushes the event so often.
std::vector<std::thread> Pushing(EventQueue& queue, const AgentEvent& event) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&queue, event] {
      for (size_t j = 0; j < kEach; ++j) queue.Push(event);
    });
  }
  return threads;
}

TEST_F(EventQueueTest, ManyThreads_LoseNothing) {
  const auto queue = Make();
  std::vector<std::thread> threads = Pushing(*queue, AgentTick{});
  while (handled_.size() < kThreads * kEach) {
    pollfd wait = {queue->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 10000), 1);
    queue->HandleAll();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(handled_.size(), kThreads * kEach);
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

TEST_F(EventQueueTest, StoreEvents_AreHandledByThePosterWhileTheLoopRests) {
  MonoTime due = kEver;
  const auto queue = Make([&] { return due; });
  queue->Push(Answer(1));
  EXPECT_TRUE(handled_.empty()) << "the loop does not rest";
  queue->HandleAll();
  queue->Rest(kEver);
  v1::StoreRequest request;
  request.set_request_id(2);
  queue->Push(WorkerAsked{request});
  queue->Push(Answer(3));
  ASSERT_EQ(handled_.size(), 3u);
  EXPECT_EQ(RequestOf(handled_[1]), 2u);
  EXPECT_EQ(RequestOf(handled_[2]), 3u);
  EXPECT_FALSE(Readable(*queue));
  due = MonoTime();
  queue->Push(Answer(4));
  EXPECT_EQ(handled_.size(), 4u);
  EXPECT_TRUE(Readable(*queue)) << "the loop has to look around";
  queue->HandleAll();
  EXPECT_FALSE(Readable(*queue));
}

TEST_F(EventQueueTest, StoreEvents_DoNotOvertakeWhatIsTheLoops) {
  const auto queue = Make(NeverDue);
  queue->Rest(kEver);
  queue->Push(LinkUp{});
  queue->Push(Answer(1));
  EXPECT_TRUE(handled_.empty());
  queue->HandleAll();
  ASSERT_EQ(handled_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LinkUp>(handled_[0]));
}

// Of a request that is answered at once, within handling it.
TEST(EventQueue, WhatIsPostedWhileHandling_IsHandledNext) {
  std::vector<uint64_t> handled;
  bool link_up = false;
  EventQueue* posts_to = nullptr;
  const auto handle = [&](const AgentEvent& event) {
    if (std::holds_alternative<LinkUp>(event)) {
      link_up = true;
      return;
    }
    const uint64_t request = RequestOf(event);
    if (request == 1) posts_to->Push(Answer(2));
    if (request == 2) posts_to->Push(LinkUp{});
    handled.push_back(request);
  };
  auto queue = EventQueue::Make(handle, NeverDue);
  ASSERT_OK(queue);
  posts_to = queue->get();
  posts_to->Rest(kEver);
  posts_to->Push(Answer(1));
  EXPECT_THAT(handled, testing::ElementsAre(1, 2));
  EXPECT_TRUE(Readable(*posts_to));
  EXPECT_FALSE(link_up);
  posts_to->HandleAll();
  EXPECT_TRUE(link_up);
}

TEST_F(EventQueueTest, ManyThreads_HandleOneAtATime) {
  const auto queue = Make(NeverDue);  // what is handled is guarded by it alone
  std::vector<std::thread> threads = Pushing(*queue, Answer(1));
  for (size_t i = 0; i < kEach; ++i) {
    queue->HandleAll();
    queue->Rest(kEver);
  }
  for (std::thread& thread : threads) thread.join();
  queue->HandleAll();
  EXPECT_EQ(handled_.size(), kThreads * kEach);
}

}  // namespace
}  // namespace cadre::agent
