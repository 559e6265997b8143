#include "rpc/frames/messages.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::frames {
namespace {

using ::testing::ElementsAre;

enum class Colour : uint8_t { kRed, kBlue };

struct Paint {
  Colour colour = Colour::kRed;
  int64_t amount = 0;
  bool wet = false;
  std::vector<std::string> walls;
};
template <typename Io>
void Fields(Io& io, Paint& m) {
  io(m.colour, m.amount, m.wet, m.walls);
}
struct Leave {};
template <typename Io>
void Fields(Io& io, Leave&) {
  io();
}
using Message = std::variant<Paint, Leave>;

std::string ContentOf(const Message& message) {
  std::string bytes;
  AppendMessage(message, &bytes);
  return bytes.substr(kLengthBytes);
}

TEST(MessagesTest, EveryFieldComesBack) {
  Paint paint;
  paint.colour = Colour::kBlue;
  paint.amount = -5;
  paint.wet = true;
  paint.walls = {"north", "", std::string("a\0b", 3)};
  const auto message = ParseMessage<Message>(ContentOf(paint));
  ASSERT_OK(message);
  const Paint& read = std::get<Paint>(*message);
  EXPECT_EQ(read.colour, Colour::kBlue);
  EXPECT_EQ(read.amount, -5);
  EXPECT_TRUE(read.wet);
  EXPECT_THAT(read.walls, ElementsAre("north", "", std::string("a\0b", 3)));
  const auto leave = ParseMessage<Message>(ContentOf(Leave{}));
  ASSERT_OK(leave);
  EXPECT_TRUE(std::holds_alternative<Leave>(*leave));
}

TEST(MessagesTest, TheFrameHasItsLengthInFront) {
  std::string bytes = "before";
  AppendMessage(Message(Leave{}), &bytes);
  EXPECT_EQ(bytes, std::string("before\x01\0\0\0\x02", 11));
}

struct Order {
  uint64_t id = 0;
  Message what;
};
template <typename Io>
void Fields(Io& io, Order& m) {
  io(m.id, m.what);
}

TEST(MessagesTest, MessagesNest) {
  std::string bytes;
  Paint paint;
  paint.amount = 3;
  AppendMessage(Order{7, paint}, &bytes);
  const auto order = ParseMessage<Order>(bytes.substr(kLengthBytes));
  ASSERT_OK(order);
  EXPECT_EQ(order->id, 7u);
  EXPECT_EQ(std::get<Paint>(order->what).amount, 3);
}

TEST(MessagesTest, WhatIsNoMessageIsRefused) {
  const std::string good = ContentOf(Paint{});
  for (const std::string& content : {std::string(), std::string(1, '\0'), std::string("\x03"),
                                     good + "x", good.substr(0, good.size() - 1)}) {
    EXPECT_THAT(ParseMessage<Message>(content), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(MessagesTest, ALyingCountDoesNotAllocate) {
  std::string content = ContentOf(Paint{});
  for (size_t i = content.size() - 4; i < content.size(); ++i) content[i] = '\xff';
  EXPECT_THAT(ParseMessage<Message>(content), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre::frames
