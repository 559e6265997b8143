#include "agent/local/store_sockets.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "rpc/frames/store_frames.h"

namespace cadre {
namespace {

constexpr char kToken[] = "0123456789abcdef";
constexpr int kLimitMs = 20000;

v1::StoreRequest RequestOf(uint64_t client, uint64_t id) {
  v1::StoreRequest request;
  request.set_client(client);
  request.set_request_id(id);
  request.mutable_get()->set_key("k");
  return request;
}

// A worker's end.
class Client {
 public:
  explicit Client(int socket) : socket_(socket) {}
  ~Client() { close(socket_); }

  void Say(const std::string& bytes) {
    ASSERT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void SayFrame(const std::string& content) {
    std::string bytes;
    frames::AppendFrame(content, &bytes);
    Say(bytes);
  }
  void Ask(uint64_t client, uint64_t id) { SayFrame(RequestOf(client, id).SerializeAsString()); }
  v1::StoreReply Read() {
    v1::StoreReply reply;
    absl::string_view frame;
    for (;;) {
      const absl::StatusOr<bool> found = reader_.Next(&frame);
      if (found.ok() && *found) break;
      pollfd wait = {socket_, POLLIN, 0};
      if (!found.ok() || poll(&wait, 1, kLimitMs) != 1 || !reader_.ReadFrom(socket_).ok()) {
        ADD_FAILURE() << "no answer";
        return reply;
      }
    }
    EXPECT_TRUE(reply.ParseFromArray(frame.data(), static_cast<int>(frame.size())));
    return reply;
  }
  bool HasEnded() {
    char byte;
    return recv(socket_, &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  const int socket_;
  frames::FrameReader reader_{kStoreFrameBytesMax};
};

class StoreSocketsTest : public ::testing::Test {
 protected:
  // Connections come through a queue in place of a listener.
  StoreSocketsTest() : listener_(eventfd(0, EFD_NONBLOCK)) {
    auto sockets = StoreSockets::Make(kToken, listener_, [this] {
      uint64_t count = 0;
      EXPECT_LE(read(listener_, &count, sizeof(count)), 8);
      if (coming_.empty()) return -1;
      const int socket = coming_.back();
      coming_.pop_back();
      return socket;
    });
    EXPECT_OK(sockets);
    sockets_ = *std::move(sockets);
  }
  ~StoreSocketsTest() override {
    sockets_.reset();
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
  // All that is asked until there is nothing more to read.
  std::vector<v1::StoreRequest> ReadAll() {
    std::vector<v1::StoreRequest> all;
    pollfd wait = {sockets_->fd(), POLLIN, 0};
    while (poll(&wait, 1, 0) == 1) {
      for (v1::StoreRequest& request : sockets_->Read()) all.push_back(std::move(request));
    }
    return all;
  }
  void Answer(uint64_t client, uint64_t id, const std::string& value) {
    v1::StoreReply reply;
    reply.set_client(client);
    reply.set_request_id(id);
    reply.set_value(value);
    sockets_->Answer(reply);
  }

  const int listener_;
  std::vector<int> coming_;
  std::unique_ptr<StoreSockets> sockets_;
};

TEST_F(StoreSocketsTest, AnswersComeInAnyOrderToWhoAsked) {
  const auto one = Connect(), two = Connect();
  one->Ask(1, 7);
  one->Ask(1, 8);
  two->Ask(2, 7);
  EXPECT_EQ(ReadAll().size(), 3u);
  Answer(1, 8, "second");
  Answer(2, 7, "another client's");
  Answer(1, 7, "first");
  EXPECT_EQ(one->Read().value(), "second");
  EXPECT_EQ(one->Read().value(), "first");
  EXPECT_EQ(two->Read().value(), "another client's");
}

TEST_F(StoreSocketsTest, ARepeatedRequestIsAnsweredOnBothConnections) {
  const auto one = Connect(), two = Connect();
  one->Ask(1, 7);
  two->Ask(1, 7);
  EXPECT_EQ(ReadAll().size(), 2u);
  Answer(1, 7, "v");
  EXPECT_EQ(one->Read().value(), "v");
  EXPECT_EQ(two->Read().value(), "v");
}

TEST_F(StoreSocketsTest, AWrongTokenAsksNothing) {
  // The third is as long as another agent's.
  for (const std::string token : {"wrong", "", "0123456789abcdeX"}) {
    const auto stranger = Connect(token);
    stranger->Ask(1, 7);
    EXPECT_TRUE(ReadAll().empty());
    EXPECT_EQ(stranger->Read().code(), static_cast<int>(absl::StatusCode::kUnauthenticated));
    EXPECT_TRUE(stranger->HasEnded());
  }
}

TEST_F(StoreSocketsTest, WhatIsNoRequestEndsTheConnection) {
  const auto client = Connect(), other = Connect();
  client->SayFrame("\xff\xff\xff");
  other->Say("\xff\xff\xff\xff");
  EXPECT_TRUE(ReadAll().empty());
  EXPECT_EQ(client->Read().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(other->Read().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(client->HasEnded());
}

TEST_F(StoreSocketsTest, OneThatAsksTooMuchIsReadFromAgainWhenThereIsRoom) {
  const auto slow = Connect(), other = Connect();
  std::string bytes;
  for (uint64_t id = 1; id <= kMaxCallsPerSocket + 2; ++id)
    AppendStoreFrame(RequestOf(1, id), &bytes);
  slow->Say(bytes);
  other->Ask(2, 7);
  EXPECT_EQ(ReadAll().size(), kMaxCallsPerSocket + 1);
  Answer(1, 1, "first");
  EXPECT_EQ(slow->Read().value(), "first");
  const std::vector<v1::StoreRequest> next = ReadAll();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].request_id(), kMaxCallsPerSocket + 1);
}

TEST_F(StoreSocketsTest, AnswersThatDoNotFitAreWrittenWhenTheyAreRead) {
  const auto client = Connect();
  constexpr uint64_t kCount = 64;
  for (uint64_t id = 1; id <= kCount; ++id) client->Ask(1, id);
  EXPECT_EQ(ReadAll().size(), kCount);
  const std::string large(60000, 'x');
  for (uint64_t id = 1; id <= kCount; ++id) Answer(1, id, large);
  for (uint64_t id = 1; id <= kCount; ++id) {
    ReadAll();
    const v1::StoreReply reply = client->Read();
    EXPECT_EQ(reply.request_id(), id);
    EXPECT_EQ(reply.value(), large);
  }
}

TEST_F(StoreSocketsTest, OneThatHasGoneIsForgotten) {
  auto client = Connect();
  client->Ask(1, 7);
  EXPECT_EQ(ReadAll().size(), 1u);
  client.reset();
  EXPECT_TRUE(ReadAll().empty());
  Answer(1, 7, "late");
}

TEST_F(StoreSocketsTest, LeavingIsSaidToAll) {
  const auto client = Connect();
  client->Ask(1, 7);
  EXPECT_EQ(ReadAll().size(), 1u);
  sockets_.reset();
  const v1::StoreReply reply = client->Read();
  EXPECT_EQ(reply.request_id(), 0u);
  EXPECT_EQ(reply.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(client->HasEnded());
}

}  // namespace
}  // namespace cadre
