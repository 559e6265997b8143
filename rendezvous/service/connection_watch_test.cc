#include "rendezvous/service/connection_watch.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rendezvous/service/grpc_reads.h"

namespace cadre::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MonoTime At(double seconds) { return MonoTime() + absl::Seconds(seconds); }

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frames(char type, size_t payload, int times = 1) {
  std::string frame(9, '\0');
  frame[0] = static_cast<char>(payload >> 16);
  frame[1] = static_cast<char>(payload >> 8);
  frame[2] = static_cast<char>(payload);
  frame[3] = type;
  frame += std::string(payload, 'x');
  std::string all;
  for (int i = 0; i < times; ++i) all += frame;
  return all;
}
std::string Calls(int times) { return Frames(1, 20, times); }
std::string Resets(int times) { return Frames(3, 4, times); }
// A call: its headers, and DATA.
std::string Call(int stream) {
  std::string frame = Frames(1, 20);
  frame[7] = static_cast<char>(stream >> 8);
  frame[8] = static_cast<char>(stream);
  return frame;
}
std::string Data(int stream, const std::string& payload, char flags = 0) {
  std::string frame = Frames(0, payload.size());
  frame.replace(9, payload.size(), payload);
  frame[4] = flags;
  frame[8] = static_cast<char>(stream);
  return frame;
}

class ConnectionWatchTest : public ::testing::Test {
 protected:
  ConnectionWatchTest() {
    limits_.burst = 1400;
    limits_.per_second = 10;
    budget_ = std::make_shared<AdmissionBudget>(limits_);
    EXPECT_TRUE(budget_->Begin("10.0.0.1", At(0)));
    watch_ = std::make_unique<ConnectionWatch>(
        "10.0.0.1", "10.0.0.1", budget_,
        [this](const std::string& address, const absl::Status& why) {
          log_.push_back(address + ": " + std::string(why.message()));
        });
    EXPECT_OK(watch_->OnRead(kPreface, At(0)));
  }

  AdmissionLimits limits_;
  std::shared_ptr<AdmissionBudget> budget_;
  std::unique_ptr<ConnectionWatch> watch_;
  std::vector<std::string> log_;
};

TEST_F(ConnectionWatchTest, CallsWithoutATokenEndItWhenItsSourcesBudgetIsUsedUp) {
  EXPECT_OK(watch_->OnRead(Calls(950), At(0)));
  EXPECT_THAT(watch_->OnRead(Calls(100), At(0)), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("10.0.0.1: the client sent too much")));
  EXPECT_TRUE(budget_->Begin("10.0.0.1", At(0))) << "a quarter is for connections that begin";
}

TEST_F(ConnectionWatchTest, SoDoOtherFrames) {
  // RST_STREAM, SETTINGS and PING; DATA that holds nothing, window updates.
  const std::vector<std::pair<char, int>> all = {{3, 1}, {4, 1}, {6, 1}, {0, 16}, {8, 16}};
  for (const auto& [type, of_a_call] : all) {
    const size_t payload = type == 0 ? 0 : 4;
    ConnectionWatch watch("10.0.0.2", "10.0.0.2", std::make_shared<AdmissionBudget>(limits_),
                          nullptr);
    EXPECT_OK(watch.OnRead(kPreface + Frames(type, payload, 1000 * of_a_call), At(0)));
    EXPECT_THAT(watch.OnRead(Frames(type, payload, 100 * of_a_call), At(0)),
                StatusIs(absl::StatusCode::kResourceExhausted))
        << int{type};
  }
}

TEST_F(ConnectionWatchTest, SoDoLongHeaders) {
  EXPECT_OK(watch_->OnRead(Frames(1, 8000, 50), At(0)));
  EXPECT_THAT(watch_->OnRead(Frames(1, 8000, 20), At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ConnectionWatchTest, SoDoBytesOfMessages) {
  for (int i = 0; i < 4; ++i) ASSERT_OK(watch_->OnRead(Frames(0, 1 << 20), At(0)));
  EXPECT_THAT(watch_->OnRead(Frames(0, 1 << 20), At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ConnectionWatchTest, AnAdministratorsIsFree_AndItsSourceHasItsBudgetBack) {
  EXPECT_OK(watch_->OnRead(Calls(900), At(0)));
  EXPECT_OK(watch_->Admit(nullptr, At(0)));
  EXPECT_OK(watch_->OnRead(Calls(100'000), At(0)));
  EXPECT_TRUE(budget_->Begin("10.0.0.1", At(0)));
}

class UsersConnectionsTest : public ConnectionWatchTest {
 protected:
  UsersConnectionsTest() {
    EXPECT_OK(other_.OnRead(kPreface, At(0)));
    for (ConnectionWatch* watch : {watch_.get(), &other_}) EXPECT_OK(watch->Admit(ann_, At(0)));
  }

  const std::shared_ptr<CallerTraffic> ann_ = std::make_shared<CallerTraffic>("user ann");
  ConnectionWatch other_{"10.0.0.1", "10.0.0.1", budget_, nullptr};
};

TEST_F(UsersConnectionsTest, ShareOneLimitOfCalls) {
  EXPECT_OK(watch_->OnRead(Resets(600), At(0)));
  EXPECT_THAT(other_.OnRead(Resets(600), At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("user ann exceeds the limit of 500 ")));
  EXPECT_OK(watch_->OnRead(Resets(800), At(1)));
}

TEST_F(UsersConnectionsTest, CallsBeforeTheTokenIsKnownCountToo) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(budget_->Begin("10.0.0.1", At(0)));
    ConnectionWatch next("10.0.0.1", "10.0.0.1", budget_, nullptr);
    EXPECT_OK(next.OnRead(std::string(kPreface) + Resets(450), At(0)));
    EXPECT_EQ(next.Admit(ann_, At(0)).ok(), i < 2);
    EXPECT_EQ(next.OnRead(Resets(1), At(0)).ok(), i < 2);
  }
}

// As after a restart of the server: each sends little, and none is closed.
TEST_F(UsersConnectionsTest, ThousandsOfNodesComeAtOnceAndStay) {
  AdmissionLimits limits;
  const auto budget = std::make_shared<AdmissionBudget>(limits);
  std::vector<std::unique_ptr<ConnectionWatch>> nodes;
  for (int i = 0; i < 4000; ++i) {
    const MonoTime now = At(1 + i * 0.0005);
    ASSERT_TRUE(budget->Begin("10.0.0.2", now));
    nodes.push_back(std::make_unique<ConnectionWatch>("10.0.0.2", "10.0.0.2", budget, nullptr));
    ASSERT_OK(nodes.back()->OnRead(kPreface + Frames(4, 12, 2) + Calls(1), now));
    ASSERT_OK(nodes.back()->Admit(ann_, now)) << i;
  }
  for (int second = 4; second < 14; ++second) {
    for (const auto& node : nodes) {
      ASSERT_OK(node->OnRead(Frames(0, 40, 4) + Frames(8, 4, 2) + Frames(6, 8), At(second)));
    }
  }
}

TEST_F(UsersConnectionsTest, TheirNumberIsLimited) {
  const auto readers = std::make_shared<CallerTraffic>("the read-only tokens", 2);
  std::vector<std::unique_ptr<ConnectionWatch>> open;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(budget_->Begin("10.0.0.1", At(0)));
    open.push_back(std::make_unique<ConnectionWatch>("10.0.0.1", "10.0.0.1", budget_, nullptr));
    EXPECT_EQ(open.back()->Admit(readers, At(0)).ok(), i < 2);
  }
  open.clear();
  ASSERT_TRUE(budget_->Begin("10.0.0.1", At(0)));
  ConnectionWatch next("10.0.0.1", "10.0.0.1", budget_, nullptr);
  EXPECT_OK(next.Admit(readers, At(0)));
}

TEST_F(UsersConnectionsTest, LargeAnswersAreMadeUpForBeforeTheNextCall) {
  EXPECT_OK(ann_->MayAsk(At(0)));
  ann_->OnAnswered(96 << 20, At(0));
  EXPECT_THAT(ann_->MayAsk(At(1)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("16 MiB of answers")));
  EXPECT_OK(ann_->MayAsk(At(2.1)));
}

TEST_F(UsersConnectionsTest, SmallFramesCountForLess) {
  EXPECT_OK(watch_->OnRead(Frames(6, 8, 3'328), At(0)));
  EXPECT_OK(watch_->OnRead(Frames(8, 4, 12'800), At(0)));
  EXPECT_OK(watch_->OnRead(Frames(0, 0, 12'800), At(0)));
  EXPECT_THAT(watch_->OnRead(Frames(0, 0, 15'000), At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(UsersConnectionsTest, ShareOneLimitOfOpenCalls_BeyondEachOnesFirst) {
  for (int i = 0; i < 513; ++i) {
    ASSERT_OK(watch_->OnRead(Call(2 * i + 1), At(i)));
    ASSERT_OK(other_.OnRead(Call(2 * i + 1), At(i)));
  }
  EXPECT_THAT(other_.OnRead(Call(2001), At(1000)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1024 requests under way")));
  watch_.reset();
  EXPECT_OK(other_.OnRead(Call(2003), At(1000)));
}

TEST_F(UsersConnectionsTest, ShareOneLimitOfMessagesThatAreNotComplete) {
  const std::string half = Data(1, std::string("\0\0\xff\xff\xff", 5) + std::string(1 << 20, 'x'));
  for (int i = 0; i < 40; ++i) {
    ASSERT_OK(watch_->OnRead(Call(2 * i + 1), At(i)));
    std::string mine = half;
    mine[8] = static_cast<char>(2 * i + 1);
    ASSERT_OK(watch_->OnRead(mine, At(i)));
  }
  absl::Status status;
  for (int i = 0; i < 40 && status.ok(); ++i) {
    ASSERT_OK(other_.OnRead(Call(2 * i + 1), At(100 + i)));
    std::string mine = half;
    mine[8] = static_cast<char>(2 * i + 1);
    status = other_.OnRead(mine, At(100 + i));
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("64 MiB of messages under way")));
}

TEST_F(UsersConnectionsTest, ShareOneLimitOfRequestBytes) {
  const std::string request =
      Data(1, std::string("\0\0\x0f\xff\xfb", 5) + std::string(0xffffb, 'x'), 1);
  for (int i = 0; i < 32; ++i) ASSERT_OK(watch_->OnRead(Call(1) + request, At(0)));
  EXPECT_THAT(other_.OnRead(Call(1) + request, At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("32 MiB of requests")));
}

TEST_F(ConnectionWatchTest, HeadersWithoutEndAreCutOffForEverybody) {
  EXPECT_OK(watch_->Admit(std::make_shared<CallerTraffic>("user ann"), At(0)));
  EXPECT_OK(watch_->OnRead(Frames(1, 8192), At(0)));
  EXPECT_OK(watch_->OnRead(Frames(9, 8192), At(0)));
  EXPECT_THAT(watch_->OnRead(Frames(9, 1), At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("headers")));
}

std::string Frame(int type, const std::string& payload, int stream = 1, int flags = 0) {
  std::string frame(9, '\0');
  frame[0] = static_cast<char>(payload.size() >> 16);
  frame[1] = static_cast<char>(payload.size() >> 8);
  frame[2] = static_cast<char>(payload.size());
  frame[3] = static_cast<char>(type);
  frame[4] = static_cast<char>(flags);
  frame[8] = static_cast<char>(stream);
  return frame + payload;
}
std::string Frame(int type, size_t payload, int stream = 1, int flags = 0) {
  return Frame(type, std::string(payload, '\xff'), stream, flags);
}
// A message as gRPC writes it.
std::string Message(size_t size) {
  std::string prefix(5, '\0');
  prefix[3] = static_cast<char>(size >> 8);
  prefix[4] = static_cast<char>(size);
  return prefix + std::string(size, 'm');
}
constexpr int kEndStream = 1;
constexpr int kPadded = 8;

TEST(Http2Frames, EachTypeCountsForItself) {
  Http2Frames frames;
  const std::string all = kPreface + Frame(4, 12) + Frame(8, 4) + Frame(1, 300) + Frame(0, 5000) +
                          Frame(0, 0) + Frame(3, 4) + Frame(6, 8);
  const Http2Frames::Counts counts = frames.Read(all);
  EXPECT_EQ(counts.calls, 2u) << "HEADERS, RST_STREAM";
  EXPECT_EQ(counts.control, 2u) << "SETTINGS, PING";
  EXPECT_EQ(counts.small, 3u) << "WINDOW_UPDATE, DATA twice";
  EXPECT_EQ(counts.data_bytes, 5000u);
  EXPECT_EQ(counts.header_bytes, 300u);
  EXPECT_EQ(counts.header_block_bytes, 300u);
}

TEST(Http2Frames, BytesThatComeOneByOneCountTheSame) {
  Http2Frames frames;
  Http2Frames::Counts sum;
  for (const char byte : kPreface + Frame(1, 20) + Frame(3, 4) + Frame(0, 70000) + Frame(1, 3)) {
    const Http2Frames::Counts counts = frames.Read(absl::string_view(&byte, 1));
    sum.calls += counts.calls;
    sum.data_bytes += counts.data_bytes;
  }
  EXPECT_EQ(sum.calls, 3u);
  EXPECT_EQ(sum.data_bytes, 70000u);
}

TEST(Http2Frames, CallsAreOpenUntilTheirClientEndsOrResetsThem) {
  Http2Frames frames;
  frames.Read(kPreface + Frame(1, 20, 1) + Frame(1, 20, 3) + Frame(1, 20, 5));
  EXPECT_EQ(frames.open_calls(), 3u);
  EXPECT_EQ(frames.Read(Frame(0, Message(50), 3, kEndStream)).ended_call_bytes, 55u);
  EXPECT_EQ(frames.open_calls(), 2u);
  frames.Read(Frame(3, 4, 1) + Frame(1, 3, 5, kEndStream));
  EXPECT_EQ(frames.open_calls(), 0u);
}

TEST(Http2Frames, MessagesArePartialUntilTheirLastByte) {
  Http2Frames frames;
  frames.Read(kPreface + Frame(1, 20, 1) + Frame(1, 20, 3));
  const std::string message = Message(1000);
  frames.Read(Frame(0, message.substr(0, 3), 1) + Frame(0, message.substr(0, 600), 3));
  EXPECT_EQ(frames.partial_bytes(), 603u);
  frames.Read(Frame(0, message.substr(3) + Message(0) + message.substr(0, 7), 1));
  EXPECT_EQ(frames.partial_bytes(), 607u);
  frames.Read(Frame(3, 4, 3));
  EXPECT_EQ(frames.partial_bytes(), 7u);
  frames.Read(Frame(0, message, 1, kPadded));
  EXPECT_EQ(frames.partial_bytes(), 1012u) << "what is padded is not looked into";
}

TEST(Http2Frames, AHeaderBlockGoesOnInItsContinuations) {
  Http2Frames frames;
  frames.Read(kPreface + Frame(1, size_t{100}) + Frame(9, 1000));
  EXPECT_EQ(frames.Read(Frame(9, 1000)).header_block_bytes, 2100u);
  EXPECT_EQ(frames.Read(Frame(0, 10)).header_block_bytes, 0u) << "no header block came";
  EXPECT_EQ(frames.Read(Frame(1, 7)).header_block_bytes, 7u) << "the next call's begins anew";
}

// The acceptor forgets a connection whose peer has ended its half, and gRPC reads what came before.
TEST(WatchReads, KeepsTheWatchUntilGrpcIsDoneWithTheDescriptor) {
  const auto budget = std::make_shared<AdmissionBudget>(AdmissionLimits());
  // Not a descriptor of this process.
  constexpr int kDescriptor = 1'000'000;
  auto watch = std::make_shared<ConnectionWatch>("10.0.0.1", "10.0.0.1", budget, nullptr);
  const std::weak_ptr<ConnectionWatch> first = watch;
  WatchReads(kDescriptor, std::move(watch));
  EXPECT_FALSE(first.expired());
  // The kernel reuses a number only when the earlier connection is gone.
  WatchReads(kDescriptor,
             std::make_shared<ConnectionWatch>("10.0.0.1", "10.0.0.1", budget, nullptr));
  EXPECT_TRUE(first.expired());
}

}  // namespace

}  // namespace cadre::service
