// With real sockets on loopback, served by the test's own thread.
#include "agent/torch_store/torch_store_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "agent/torch_store/listener.h"
#include "agent/torch_store/request_bytes.h"
#include "agent/torch_store/store_client.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kZero(1, '\0'), kOne(1, '\1');

class TorchStoreServerTest : public ::testing::Test {
 protected:
  void Open(TorchStoreServer::Options options = {}) {
    auto listener = ListenAt("127.0.0.1", 0);
    ASSERT_OK(listener);
    port_ = PortOf(*listener);
    options.listener = *std::move(listener);
    options.nodes = *NodeAddresses::Make("127.0.0.1", {});
    options.say = [this](std::string line) { lines_.push_back(std::move(line)); };
    auto made = TorchStoreServer::Make(std::move(options));
    ASSERT_OK(made);
    server_ = *std::move(made);
  }
  std::function<void()> Serving() {
    return [this] {
      if (server_ != nullptr) server_->Serve(absl::ZeroDuration());
    };
  }
  std::unique_ptr<StoreClient> Stranger(const char* from = "127.0.0.1") {
    return std::make_unique<StoreClient>(port_, Serving(), from);
  }
  // One that has shown that it speaks the protocol.
  std::unique_ptr<StoreClient> Client() {
    auto client = Stranger();
    EXPECT_TRUE(client->Send(ValidateBytes() + PingBytes(77)));
    EXPECT_EQ(client->Read(4), rpc::LittleEndian32(77));
    return client;
  }
  // Until there are so many connections.
  void AwaitConnections(size_t count) {
    const MonoTime deadline = MonoNow() + absl::Seconds(20);
    while (server_->connections() != count && MonoNow() < deadline) {
      server_->Serve(absl::Milliseconds(1));
    }
    EXPECT_EQ(server_->connections(), count);
  }

  uint16_t port_ = 0;
  std::vector<std::string> lines_;
  std::unique_ptr<TorchStoreServer> server_;
};

TEST_F(TorchStoreServerTest, ClientsShareKeys) {
  Open();
  const auto one = Client(), other = Client();
  ASSERT_TRUE(one->Send(TextsRequest(TorchOp::kSet, {"/a", "value"})));
  ASSERT_TRUE(one->Send(PingBytes(1)));
  EXPECT_EQ(one->Read(4), rpc::LittleEndian32(1));
  ASSERT_TRUE(other->Send(TextsRequest(TorchOp::kGet, {"/a"})));
  EXPECT_EQ(other->Read(13), rpc::TorchText("value"));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TorchStoreServerTest, AWaitEndsWithTheLastKey) {
  Open();
  const auto waits = Client(), sets = Client();
  ASSERT_TRUE(waits->Send(KeysRequest(TorchOp::kWait, {"/a", "/b"})));
  ASSERT_TRUE(sets->Send(TextsRequest(TorchOp::kSet, {"/a", ""}) +
                         TextsRequest(TorchOp::kSet, {"/b", ""})));
  EXPECT_EQ(waits->Read(1), kZero);
}

TEST_F(TorchStoreServerTest, WhoEndsWaitsNoMore) {
  Open();
  auto waits = Client();
  const auto sets = Client();
  ASSERT_TRUE(waits->Send(KeysRequest(TorchOp::kWait, {"/a"})));
  waits.reset();
  AwaitConnections(1);
  ASSERT_TRUE(sets->Send(TextsRequest(TorchOp::kSet, {"/a", ""}) + PingBytes(3)));
  EXPECT_EQ(sets->Read(4), rpc::LittleEndian32(3));
}

TEST_F(TorchStoreServerTest, WhoDoesNotValidateFirstIsDropped) {
  Open();
  const auto keeps = Client();
  EXPECT_TRUE(Stranger()->Send(PingBytes(1)));
  for (const std::string& first :
       {PingBytes(1), rpc::TorchOpByte(TorchOp::kValidate) + rpc::LittleEndian32(1),
        std::string("GET / HTTP/1.1"),
        rpc::TorchOpByte(TorchOp::kSet) + rpc::LittleEndian64(UINT64_MAX)}) {
    const auto stranger = Stranger();
    stranger->Send(first);
    EXPECT_TRUE(stranger->IsClosed());
  }
  AwaitConnections(1);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("from 127.0.0.1"), HasSubstr("PyTorch 2.1"))));
  ASSERT_TRUE(keeps->Send(PingBytes(9)));
  EXPECT_EQ(keeps->Read(4), rpc::LittleEndian32(9));
}

TEST_F(TorchStoreServerTest, GarbageEndsTheConnection) {
  Open();
  for (const std::string& garbage :
       {std::string("\x13"), std::string("\xff\xff"), ValidateBytes(),
        rpc::TorchOpByte(TorchOp::kSet) + rpc::LittleEndian64(9000),
        rpc::TorchOpByte(TorchOp::kWait) + rpc::LittleEndian64(1 << 20)}) {
    const auto client = Client();
    client->Send(garbage);
    EXPECT_TRUE(client->IsClosed());
  }
  AwaitConnections(0);
  EXPECT_EQ(server_->held_bytes(), 0u);
}

TEST_F(TorchStoreServerTest, WhoSaysNothingIsDroppedInTime) {
  TorchStoreServer::Options options;
  options.validation_time = absl::Milliseconds(50);
  Open(std::move(options));
  const auto silent = Stranger();
  const auto slow = Stranger();
  ASSERT_TRUE(slow->Send(ValidateBytes().substr(0, 3)));
  EXPECT_TRUE(silent->IsClosed());
  EXPECT_TRUE(slow->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("said nothing for 50ms")));
  // One that has validated may be silent.
  const auto client = Client();
  const MonoTime later = MonoNow() + absl::Milliseconds(100);
  while (MonoNow() < later) server_->Serve(absl::Milliseconds(10));
  ASSERT_TRUE(client->Send(PingBytes(2)));
  EXPECT_EQ(client->Read(4), rpc::LittleEndian32(2));
}

TEST_F(TorchStoreServerTest, OtherMachinesAreRefused) {
  Open();
  EXPECT_TRUE(Stranger("127.0.0.9")->IsClosed());
  EXPECT_TRUE(Stranger("127.0.0.9")->IsClosed());
  EXPECT_THAT(lines_,
              ElementsAre(AllOf(HasSubstr("from 127.0.0.9"), HasSubstr("--no-agent-store"))));
  Client();
}

// On a node that several users share its address is everybody's.
TEST_F(TorchStoreServerTest, OtherUsersOfThisMachineAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  Open();
  ASSERT_EQ(seteuid(12345), 0);
  auto client = Stranger();
  EXPECT_EQ(seteuid(0), 0);
  EXPECT_TRUE(client->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("a process of user 12345 on this machine")));
  Client();
}

TEST_F(TorchStoreServerTest, ConnectionsOverTheLimitAreRefused) {
  TorchStoreServer::Options options;
  options.max_connections = 2;
  Open(std::move(options));
  auto one = Client();
  const auto two = Client();
  EXPECT_TRUE(Stranger()->IsClosed());
  EXPECT_TRUE(Stranger()->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("has 2 connections already")));
  one.reset();
  AwaitConnections(1);
  Client();
}

TEST_F(TorchStoreServerTest, WithoutDescriptorsOthersAreServed) {
  Open();
  const auto client = Client();
  const auto waits = Stranger();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(client->Send(PingBytes(2)));
  EXPECT_EQ(client->Read(4), rpc::LittleEndian32(2));
  while (lines_.empty()) server_->Serve(absl::Milliseconds(10));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("ulimit -n")));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(waits->Send(ValidateBytes() + PingBytes(3)));
  EXPECT_EQ(waits->Read(4), rpc::LittleEndian32(3));
}

TEST_F(TorchStoreServerTest, WhatIsTooMuchEndsTheConnectionThatAskedForIt) {
  TorchStoreServer::Options options;
  options.max_bytes = 3 << 20;
  Open(std::move(options));
  const auto keeps = Client(), client = Client();
  ASSERT_TRUE(
      keeps->Send(TextsRequest(TorchOp::kSet, {"/a", std::string(2 << 20, 'x')}) + PingBytes(2)));
  EXPECT_EQ(keeps->Read(4), rpc::LittleEndian32(2));
  // Not even while it comes.
  client->Send(rpc::TorchOpByte(TorchOp::kSet) + rpc::TorchText("/b") +
               rpc::LittleEndian64(4 << 20) + std::string(2 << 20, 'y'));
  EXPECT_TRUE(client->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("holds 3 MiB already")));
  ASSERT_TRUE(keeps->Send(TextsRequest(TorchOp::kDeleteKey, {"/a"})));
  EXPECT_EQ(keeps->Read(8), rpc::LittleEndian64(1));
  EXPECT_EQ(server_->held_bytes(), 0u);
}

TEST_F(TorchStoreServerTest, WhoDoesNotReadIsNotReadAndDelaysNobody) {
  Open();
  const auto lazy = Client(), other = Client();
  ASSERT_TRUE(
      other->Send(TextsRequest(TorchOp::kSet, {"/a", std::string(8 << 20, 'x')}) + PingBytes(2)));
  EXPECT_EQ(other->Read(4), rpc::LittleEndian32(2));
  const size_t stored = server_->held_bytes();
  // As many requests as the socket takes: the server stops to read them.
  const std::string get = TextsRequest(TorchOp::kGet, {"/a"});
  size_t sent = 0;
  for (int refused = 0; refused < 100;) {
    if (send(lazy->fd(), get.data(), get.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
      ++sent;
      refused = 0;
    } else {
      ++refused;
    }
    server_->Serve(absl::ZeroDuration());
  }
  EXPECT_LT(server_->held_bytes(), stored + (4 << 20));
  ASSERT_TRUE(other->Send(PingBytes(3)));
  EXPECT_EQ(other->Read(4), rpc::LittleEndian32(3));
  // It reads after all, and has missed nothing.
  ASSERT_GT(sent, 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lazy->Read(8), rpc::LittleEndian64(8 << 20));
    EXPECT_EQ(lazy->Read(8 << 20), std::string(8 << 20, 'x'));
  }
}

TEST_F(TorchStoreServerTest, StopEndsTheWaitsOfBefore) {
  TorchStoreServer::Options options;
  options.stop_patience = absl::Milliseconds(20);
  Open(std::move(options));
  const auto waits = Client(), other = Client();
  ASSERT_TRUE(waits->Send(KeysRequest(TorchOp::kWait, {"/a"})));
  while (server_->held_bytes() == 0) server_->Serve(absl::Milliseconds(10));
  server_->StopWaits();
  EXPECT_TRUE(waits->IsClosed());
  // What is asked later is served: programs save their state while they are stopped.
  ASSERT_TRUE(other->Send(KeysRequest(TorchOp::kWait, {"/b"})));
  const auto sets = Client();
  ASSERT_TRUE(sets->Send(TextsRequest(TorchOp::kSet, {"/b", ""})));
  EXPECT_EQ(other->Read(1), kZero);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TorchStoreServerTest, ItsEndClosesAllConnections) {
  Open();
  const auto one = Client(), two = Client();
  ASSERT_TRUE(one->Send(NumberRequest(TorchOp::kBarrier, "/b", 3)));
  server_.reset();
  EXPECT_TRUE(one->IsClosed());
  EXPECT_TRUE(two->IsClosed());
}

TEST_F(TorchStoreServerTest, WakeEndsAServeThatWaits) {
  Open();
  server_->Wake();
  server_->Serve();
  EXPECT_EQ(server_->connections(), 0u);
}

}  // namespace
}  // namespace cadre::agent
