#include "agent/torch_store/answer_queue.h"

#include <sys/socket.h>

#include "base/scoped_fd.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

class AnswerQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    mine_.Reset(ends[0]);
    theirs_.Reset(ends[1]);
  }
  std::string Received() {
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(theirs_.get(), buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }
  SharedText Value(std::string text) {
    return std::make_shared<CountedText>(std::move(text), &budget_);
  }

  ByteBudget budget_{64 << 20};
  ScopedFd mine_, theirs_;
};

TEST_F(AnswerQueueTest, InOrder) {
  AnswerQueue queue(&budget_);
  EXPECT_TRUE(queue.Add("a", nullptr));
  EXPECT_TRUE(queue.Add("b", Value("value")));
  EXPECT_TRUE(queue.Add("c", nullptr));
  EXPECT_EQ(queue.unread_bytes(), 8u);
  EXPECT_TRUE(queue.SendTo(mine_.get()));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.unread_bytes(), 0u);
  EXPECT_EQ(budget_.held(), 0u);
  EXPECT_EQ(Received(), "abvaluec");
}

TEST_F(AnswerQueueTest, AReaderThatIsSlow) {
  AnswerQueue queue(&budget_);
  std::string expected;
  for (int i = 0; i < 300; ++i) {
    const std::string text(10007 + i, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(queue.Add(std::to_string(i), i % 3 == 0 ? nullptr : Value(text)));
    expected += std::to_string(i) + (i % 3 == 0 ? "" : text);
  }
  std::string received;
  while (!queue.empty()) {
    ASSERT_TRUE(queue.SendTo(mine_.get()));
    received += Received();
  }
  EXPECT_EQ(received, expected);
  EXPECT_EQ(budget_.held(), 0u);
}

TEST_F(AnswerQueueTest, WithoutRoomAndWithoutReader) {
  ByteBudget small(100);
  AnswerQueue queue(&small);
  EXPECT_FALSE(queue.Add(std::string(101, 'x'), nullptr));
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.Add("x", nullptr));
  theirs_.Reset();
  EXPECT_FALSE(queue.SendTo(mine_.get()));
}

TEST_F(AnswerQueueTest, WhatIsNeverReadIsGivenBack) {
  {
    AnswerQueue queue(&budget_);
    EXPECT_TRUE(queue.Add("x", Value("y")));
  }
  EXPECT_EQ(budget_.held(), 0u);
}

}  // namespace
}  // namespace cadre::agent
