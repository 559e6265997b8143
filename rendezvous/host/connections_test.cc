#include "rendezvous/host/connections.h"

#include <memory>
#include <vector>

#include "base/status_matchers.h"

namespace cadre::host {
namespace {

class Closed final : public NodeSink {
 public:
  void Send(v1::ServerMessage) override {}
  void Close(const absl::Status& status) override { with.push_back(status); }

  std::vector<absl::Status> with;
};

class ConnectionsTest : public ::testing::Test {
 protected:
  CallId Call(uint64_t request_id) {
    v1::StoreRequest request;
    request.set_client(7);
    request.set_request_id(request_id);
    return connections_.AddCall(request,
                                [this](const v1::StoreReply& reply) { replies_.push_back(reply); });
  }
  bool IsOpen(StreamId stream) {
    bool open = false;
    connections_.IfOpen(stream, [&] { open = true; });
    return open;
  }

  std::vector<v1::StoreReply> replies_;
  const std::shared_ptr<Closed> sink_ = std::make_shared<Closed>();
  Connections connections_;
};

TEST_F(ConnectionsTest, AStreamIsOpenUntilItIsTaken) {
  const StreamId stream = connections_.OpenStream(sink_);
  EXPECT_TRUE(IsOpen(stream));
  EXPECT_EQ(connections_.Find(stream), sink_);
  EXPECT_EQ(connections_.streams(), 1u);
  bool then = false;
  EXPECT_EQ(connections_.Take(stream, [&] { then = true; }), sink_);
  EXPECT_TRUE(then);
  EXPECT_FALSE(IsOpen(stream));
  EXPECT_EQ(connections_.Find(stream), nullptr);
  EXPECT_EQ(connections_.Take(stream), nullptr);
  EXPECT_FALSE(connections_.OpenStream(sink_) == stream) << "numbers are not used again";
  EXPECT_TRUE(sink_->with.empty());
}

TEST_F(ConnectionsTest, ACallIsTakenOnce) {
  const CallId call = Call(1);
  EXPECT_EQ(connections_.calls(), 1u);
  const Connections::CallDone done = connections_.TakeCall(call);
  ASSERT_NE(done, nullptr);
  EXPECT_EQ(connections_.TakeCall(call), nullptr);
  EXPECT_EQ(connections_.calls(), 0u);
  EXPECT_TRUE(replies_.empty());
}

TEST_F(ConnectionsTest, AtTheEndAllAreTold_AndWhoComesLater) {
  const absl::Status why = absl::UnavailableError("another server leads");
  connections_.OpenStream(sink_);
  Call(1);
  EXPECT_FALSE(connections_.ended().has_value());
  connections_.EndAll(why);
  EXPECT_EQ(connections_.ended(), why);
  EXPECT_FALSE(IsOpen(connections_.OpenStream(sink_)));
  Call(2);
  EXPECT_EQ(sink_->with, std::vector<absl::Status>(2, why));
  ASSERT_EQ(replies_.size(), 2u);
  for (uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(replies_[i].request_id(), i + 1);
    EXPECT_EQ(replies_[i].client(), 7u);
    EXPECT_EQ(replies_[i].code(), static_cast<int>(absl::StatusCode::kUnavailable));
  }
}

}  // namespace
}  // namespace cadre::host
