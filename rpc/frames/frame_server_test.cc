#include "rpc/frames/frame_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/frames/codec.h"
#include "rpc/frames/frame_reader.h"

namespace cadre::frames {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";
constexpr int kLimitMs = 20000;

constexpr size_t kMaxFrameBytes = 1 << 20;
constexpr size_t kMaxUnanswered = 50;

std::string FrameOf(const std::string& content) {
  std::string bytes;
  AppendFrame(content, &bytes);
  return bytes;
}

// The client's end of a connection.
class Client {
 public:
  explicit Client(int socket) : socket_(socket) {}
  ~Client() { close(socket_); }

  void Say(const std::string& bytes) {
    ASSERT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void SayFrame(const std::string& content) { Say(FrameOf(content)); }
  std::string Read() {
    absl::string_view frame;
    for (;;) {
      const absl::StatusOr<bool> found = reader_.Next(&frame);
      if (found.ok() && *found) break;
      pollfd wait = {socket_, POLLIN, 0};
      if (!found.ok() || poll(&wait, 1, kLimitMs) != 1 || !reader_.ReadFrom(socket_).ok()) {
        ADD_FAILURE() << "no answer";
        return "";
      }
    }
    return std::string(frame);
  }
  bool HasEnded() {
    char byte;
    return recv(socket_, &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  const int socket_;
  FrameReader reader_{kMaxFrameBytes};
};

class FrameServerTest : public ::testing::Test {
 protected:
  struct Asked {
    uint64_t connection = 0;
    std::string content;
  };

  // Connections come through a queue instead of a listener.
  FrameServerTest() : listener_(eventfd(0, EFD_NONBLOCK)) {
    FrameServer::Options options;
    options.token = kToken;
    options.max_frame_bytes = kMaxFrameBytes;
    options.max_connections = 3;
    options.max_unanswered = kMaxUnanswered;
    options.listener = listener_;
    options.accept = [this](uint64_t) {
      uint64_t count = 0;
      EXPECT_LE(read(listener_, &count, sizeof(count)), 8);
      if (std::exchange(out_of_descriptors_, false)) {
        errno = EMFILE;
        return -1;
      }
      if (coming_.empty()) return -1;
      const int socket = coming_.back();
      coming_.pop_back();
      return socket;
    };
    options.farewell = [](uint64_t, const absl::Status& why) { return FrameOf(why.ToString()); };
    options.on_frame = [this](uint64_t connection, absl::string_view content) {
      if (content == "nonsense") return absl::InvalidArgumentError("what was sent is nonsense");
      asked_.push_back({connection, std::string(content)});
      return absl::OkStatus();
    };
    options.on_end = [this](uint64_t connection) { ended_.push_back(connection); };
    auto server = FrameServer::Make(std::move(options));
    EXPECT_OK(server);
    server_ = *std::move(server);
  }
  ~FrameServerTest() override {
    server_.reset();
    close(listener_);
  }

  std::unique_ptr<Client> Connect(const std::string& token = kToken) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    coming_.push_back(ends[0]);
    const uint64_t one = 1;
    EXPECT_EQ(write(listener_, &one, sizeof(one)), 8);
    auto client = std::make_unique<Client>(ends[1]);
    client->SayFrame(token);
    return client;
  }
  // Reads until nothing more can be read, and returns the requests.
  std::vector<Asked> ReadAll() {
    pollfd wait = {server_->fd(), POLLIN, 0};
    while (poll(&wait, 1, 0) == 1) server_->Read();
    return std::exchange(asked_, {});
  }
  void Answer(const Asked& asked, const std::string& content) {
    server_->Answer(asked.connection, FrameOf(content));
  }

  const int listener_;
  std::vector<int> coming_;
  bool out_of_descriptors_ = false;
  std::vector<Asked> asked_;
  std::vector<uint64_t> ended_;
  std::unique_ptr<FrameServer> server_;
};

TEST_F(FrameServerTest, AnswersComeInAnyOrderToWhoAsked) {
  const auto one = Connect(), two = Connect();
  one->SayFrame("7");
  one->SayFrame("8");
  const std::vector<Asked> first = ReadAll();
  two->SayFrame("7");
  const std::vector<Asked> second = ReadAll();
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 1u);
  Answer(first[1], "second");
  Answer(second[0], "another client's");
  Answer(first[0], "first");
  EXPECT_EQ(one->Read(), "second");
  EXPECT_EQ(one->Read(), "first");
  EXPECT_EQ(two->Read(), "another client's");
}

TEST_F(FrameServerTest, AWrongTokenAsksNothing) {
  // The third has the length of a valid token.
  for (const std::string token : {"wrong", "", "0123456789abcdeX"}) {
    const auto stranger = Connect(token);
    stranger->SayFrame("7");
    EXPECT_TRUE(ReadAll().empty());
    EXPECT_THAT(stranger->Read(), HasSubstr("UNAUTHENTICATED"));
    EXPECT_TRUE(stranger->HasEnded());
  }
}

// Fault (input): A peer or a file sends garbage: frames, HTTP, specs, host lists, handshakes,
// records (each has a fuzz test, see `tools/fuzz`) -> It is refused, and an error is one line
TEST_F(FrameServerTest, WhatMakesNoSenseEndsTheConnection) {
  const auto client = Connect(), other = Connect();
  client->SayFrame("nonsense");
  other->Say("\xff\xff\xff\xff");
  EXPECT_TRUE(ReadAll().empty());
  EXPECT_THAT(client->Read(), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(other->Read(), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_TRUE(client->HasEnded());
  EXPECT_EQ(ended_.size(), 2u);
}

TEST_F(FrameServerTest, SoManyMayConnect) {
  const auto one = Connect(), two = Connect(), three = Connect();
  EXPECT_TRUE(ReadAll().empty());
  const auto four = Connect();
  EXPECT_TRUE(ReadAll().empty());
  EXPECT_THAT(four->Read(), HasSubstr("RESOURCE_EXHAUSTED"));
  one->SayFrame("7");
  EXPECT_EQ(ReadAll().size(), 1u);
}

// Fault (input): A launcher has no file descriptor left when a worker connects to it -> The worker
// gets an error that says so, and the launcher's event loop does not spin
TEST_F(FrameServerTest, WhoComesWithoutADescriptorLeftIsToldSo) {
  const auto early = Connect();
  EXPECT_TRUE(ReadAll().empty());
  out_of_descriptors_ = true;
  const auto refused = Connect();
  EXPECT_TRUE(ReadAll().empty());
  EXPECT_THAT(refused->Read(), HasSubstr("the agent has no more file descriptors"));
  const auto late = Connect();
  early->SayFrame("7");
  late->SayFrame("8");
  EXPECT_EQ(ReadAll().size(), 2u);
}

TEST_F(FrameServerTest, OneThatAsksTooMuchIsReadFromAgainWhenThereIsRoom) {
  const auto slow = Connect(), other = Connect();
  std::string bytes;
  for (size_t id = 1; id <= kMaxUnanswered + 2; ++id) AppendFrame(std::to_string(id), &bytes);
  slow->Say(bytes);
  const std::vector<Asked> asked = ReadAll();
  ASSERT_EQ(asked.size(), kMaxUnanswered);
  other->SayFrame("7");
  EXPECT_EQ(ReadAll().size(), 1u);
  Answer(asked[0], "first");
  EXPECT_EQ(slow->Read(), "first");
  const std::vector<Asked> next = ReadAll();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].content, std::to_string(kMaxUnanswered + 1));
}

TEST_F(FrameServerTest, AnswersThatDoNotFitAreWrittenWhenTheyAreRead) {
  const auto client = Connect();
  for (size_t id = 1; id <= kMaxUnanswered; ++id) client->SayFrame("ask");
  const std::vector<Asked> asked = ReadAll();
  ASSERT_EQ(asked.size(), kMaxUnanswered);
  const std::string large(60000, 'x');
  for (const Asked& one : asked) Answer(one, large);
  for (size_t id = 1; id <= kMaxUnanswered; ++id) {
    ReadAll();
    EXPECT_EQ(client->Read(), large);
  }
}

TEST_F(FrameServerTest, OneThatHasGoneIsForgotten) {
  auto client = Connect();
  client->SayFrame("7");
  const std::vector<Asked> asked = ReadAll();
  ASSERT_EQ(asked.size(), 1u);
  client.reset();
  EXPECT_TRUE(ReadAll().empty());
  EXPECT_EQ(ended_, std::vector<uint64_t>{asked[0].connection});
  Answer(asked[0], "late");
}

TEST_F(FrameServerTest, LeavingIsSaidToAll) {
  const auto client = Connect();
  client->SayFrame("7");
  EXPECT_EQ(ReadAll().size(), 1u);
  server_.reset();
  EXPECT_THAT(client->Read(), HasSubstr("UNAVAILABLE"));
  EXPECT_TRUE(client->HasEnded());
}

constexpr size_t kLimit = 1000;

class FrameReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Say(const std::string& bytes) {
    ASSERT_EQ(send(ends_[0], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  bool Read() {
    const absl::StatusOr<bool> read = reader_.ReadFrom(ends_[1]);
    EXPECT_OK(read);
    return read.ok() && *read;
  }
  // The next frame, or "none".
  std::string Next() {
    absl::string_view frame;
    const absl::StatusOr<bool> found = reader_.Next(&frame);
    EXPECT_OK(found);
    return found.ok() && *found ? std::string(frame) : "none";
  }

  int ends_[2] = {-1, -1};
  FrameReader reader_{kLimit};
};

TEST_F(FrameReaderTest, SeveralInOneRead) {
  std::string bytes;
  AppendFrame("token", &bytes);
  AppendFrame("", &bytes);
  AppendFrame("request", &bytes);
  Say(bytes);
  EXPECT_TRUE(Read());
  EXPECT_EQ(Next(), "token");
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(Next(), "request");
  EXPECT_EQ(Next(), "none");
  EXPECT_FALSE(Read());
}

TEST_F(FrameReaderTest, OneInManyReads) {
  std::string bytes;
  AppendFrame(std::string(300, 'x'), &bytes);
  for (const char byte : bytes) {
    EXPECT_EQ(Next(), "none");
    Say(std::string(1, byte));
    EXPECT_TRUE(Read());
  }
  EXPECT_EQ(Next(), std::string(300, 'x'));
}

TEST_F(FrameReaderTest, OneOverTheLimitIsRefusedByItsLength) {
  std::string bytes;
  AppendFrame(std::string(kLimit + 1, 'x'), &bytes);
  Say(bytes.substr(0, 4));
  EXPECT_TRUE(Read());
  absl::string_view frame;
  EXPECT_THAT(reader_.Next(&frame), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(FrameReaderTest, TheLargestIsAccepted) {
  std::string bytes;
  AppendFrame(std::string(kLimit, 'x'), &bytes);
  reader_.Append(bytes);
  EXPECT_EQ(Next(), std::string(kLimit, 'x'));
}

TEST_F(FrameReaderTest, TheEndOfTheConnectionComesBehindWhatWasSaid) {
  std::string bytes;
  AppendFrame("last", &bytes);
  Say(bytes);
  shutdown(ends_[0], SHUT_WR);
  EXPECT_TRUE(Read());
  EXPECT_EQ(Next(), "last");
  EXPECT_THAT(reader_.ReadFrom(ends_[1]), StatusIs(absl::StatusCode::kUnavailable));
}

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
