#include "worker_runtime/sockets/messages.h"

#include <chrono>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::sockets {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

// Rank 0 sends to rank 1.
class MessageChannelTest : public ::testing::Test {
 protected:
  MessageChannelTest() { std::tie(from_, to_) = wire::ConnectedPair(); }
  static Buffer Of(std::vector<float>& values) {
    return {values.data(), values.size(), DataType::kFloat32};
  }
  Status Send(std::vector<float>& values, int tag, std::chrono::nanoseconds timeout = kLong) {
    return MessageChannel(from_, 0, 1).Send(Of(values), tag, MonoNow() + timeout);
  }
  Status Receive(std::vector<float>& values, int tag, std::chrono::nanoseconds timeout = kLong) {
    return MessageChannel(to_, 1, 0).Receive(Of(values), tag, MonoNow() + timeout);
  }

  wire::Connection from_, to_;
};

TEST_F(MessageChannelTest, MessagesComeInTheirOrder_AlsoEmptyOnes) {
  std::vector<float> first = {1, 2}, none, last = {3}, got(2), nothing, end(1);
  ASSERT_OK(Send(first, 7));
  ASSERT_OK(Send(none, 8));
  ASSERT_OK(Send(last, 9));
  ASSERT_OK(Receive(got, 7));
  ASSERT_OK(Receive(nothing, 8));
  ASSERT_OK(Receive(end, 9));
  EXPECT_EQ(got, first);
  EXPECT_EQ(end, last);
}

TEST_F(MessageChannelTest, AMessageMayBeLargerThanWhatASocketHolds) {
  std::vector<float> sent(4 << 20, 5), got(sent.size());
  std::thread sender([&] { EXPECT_OK(Send(sent, 0)); });
  EXPECT_OK(Receive(got, 0));
  sender.join();
  EXPECT_TRUE(got == sent);
}

TEST_F(MessageChannelTest, AnotherMessageThanIsAwaitedIsSaid) {
  std::vector<float> sent(3), got(2);
  ASSERT_OK(Send(sent, 1));
  EXPECT_THAT(Receive(got, 2), StatusIs(StatusCode::kInvalidArgument,
                                        HasSubstr("rank 1 waits for 2 float32 with tag 2, but "
                                                  "rank 0 sent 3 float32 with tag 1")));
}

TEST_F(MessageChannelTest, NamesWhoIsLate) {
  std::vector<float> got(1), much(4 << 20);
  EXPECT_THAT(Receive(got, 0, std::chrono::milliseconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 0 did not send")));
  EXPECT_THAT(Send(much, 0, std::chrono::milliseconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 1 did not take")));
}

TEST_F(MessageChannelTest, NamesWhoHungUp) {
  std::vector<float> got(1);
  from_.Close();
  EXPECT_THAT(Receive(got, 0), StatusIs(StatusCode::kUnavailable, HasSubstr("with rank 0 ended")));
}

}  // namespace

}  // namespace cadre::sockets
