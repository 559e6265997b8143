#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/store/served_worker.h"
#include "worker_runtime/store/store_server.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::store {
namespace {

constexpr char kKey[] = "0123456789abcdef";

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = sockets::Listen("127.0.0.1");
    ASSERT_OK(listener);
    endpoint_ = sockets::EndpointOf(*listener);
    auto acceptor = StoreAcceptor::Open(*std::move(listener), {kKey}, 2);
    ASSERT_OK(acceptor);
    gate_ = *std::move(acceptor);
  }

  // Serves until a connection has been authenticated.
  ScopedFd AwaitOne() {
    while (true) {
      StoreConnection entry = gate_->Next();
      if (entry.socket.ok()) return std::move(entry.socket);
      const MonoTime next = gate_->Advance(MonoNow());
      pollfd wait = {gate_->fd(), POLLIN, 0};
      poll(&wait, 1, sockets::MillisUntil(next, 1000));
    }
  }
  // Connects a rank while other connections are served.
  Status RankComes() {
    Result<StoreConnection> entered = InternalError("");
    std::thread rank([&] { entered = ConnectToStore({endpoint_, kKey}, 1); });
    const ScopedFd inside = AwaitOne();
    rank.join();
    if (!entered.ok()) return entered.status();
    const ScopedFd outside = std::move(entered->socket);
    // Bytes sent after the proof are not lost.
    EXPECT_EQ(send(outside.get(), "x", 1, 0), 1);
    pollfd wait = {inside.get(), POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, 60000), 1);
    char byte = 0;
    EXPECT_EQ(recv(inside.get(), &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'x');
    return OkStatus();
  }
  ScopedFd PendingConnection() {
    auto socket = sockets::StartConnecting(endpoint_);
    EXPECT_OK(socket);
    return socket.ok() ? *std::move(socket) : ScopedFd();
  }

  std::string endpoint_;
  std::unique_ptr<StoreAcceptor> gate_;
};

TEST_F(GateTest, WhoKnowsTheKeyComesIn) {
  EXPECT_OK(RankComes());
  EXPECT_OK(RankComes());
}

TEST_F(GateTest, AnotherUserOfThisMachineDoesNot) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(seteuid(12345), 0);
  const ScopedFd pending = PendingConnection();
  EXPECT_EQ(seteuid(0), 0);
  EXPECT_OK(RankComes());
  char byte = 0;
  pollfd wait = {pending.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 60000), 1);
  EXPECT_LE(recv(pending.get(), &byte, 1, MSG_DONTWAIT), 0) << "it may say that it knows the key";
}

TEST_F(GateTest, StrangersDelayNobody) {
  std::vector<ScopedFd> silent;
  for (size_t i = 0; i < kMaxPendingConnections + 20; ++i) silent.push_back(PendingConnection());
  const ScopedFd loud = PendingConnection();
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n and more, so that it is enough";
  EXPECT_GE(send(loud.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  const MonoTime start = MonoNow();
  EXPECT_OK(RankComes());
  EXPECT_LT(MonoNow() - start, kAuthenticationTimeout / 2);
}

TEST_F(GateTest, WhoTakesTooLongIsDropped) {
  const ScopedFd silent = PendingConnection();
  pollfd wait = {gate_->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 60000), 1);
  EXPECT_FALSE(gate_->Next().socket.ok());
  const MonoTime late = gate_->Advance(MonoNow());
  EXPECT_NE(late, MonoTime::Never());
  EXPECT_EQ(gate_->Advance(late), MonoTime::Never());
  wait = {silent.get(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 60000), 1);
  char byte = 0;
  EXPECT_EQ(recv(silent.get(), &byte, 1, 0), 0) << "the end of the connection";
}

TEST_F(GateTest, WhoDoesNotKnowTheKeyIsToldSo) {
  Result<StoreConnection> entered = InternalError("");
  std::thread rank([&] {
    entered = ConnectToStore({endpoint_, "another key"}, 1);
    // Lets the wait below end.
    EXPECT_OK(ConnectToStore({endpoint_, kKey}, 0));
  });
  AwaitOne();
  rank.join();
  EXPECT_THAT(entered, StatusIs(StatusCode::kPermissionDenied,
                                ::testing::HasSubstr("does not know the secret")));
}

TEST_F(GateTest, WhoEncryptsDoesNotComeInWhereNobodyDoes) {
  Result<StoreConnection> entered = InternalError("");
  setenv(wire::kEncryptVariable, "1", 1);
  std::thread rank([&] {
    entered = ConnectToStore({endpoint_, kKey}, 1);
    unsetenv(wire::kEncryptVariable);
    // Lets the wait below end.
    EXPECT_OK(ConnectToStore({endpoint_, kKey}, 0));
  });
  AwaitOne();
  rank.join();
  EXPECT_THAT(entered, StatusIs(StatusCode::kFailedPrecondition,
                                ::testing::HasSubstr("rank 1 encrypts what it sends and the "
                                                     "store's server does not")));
  EXPECT_EQ(gate_->refused_rank(), 1);
}

TEST_F(GateTest, AProcessWithoutDescriptorsLooksAgainLater) {
  const ScopedFd waits = PendingConnection();
  pollfd wait = {gate_->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 60000), 1);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none = {3, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_FALSE(gate_->lacked_descriptors());
  EXPECT_FALSE(gate_->Next().socket.ok());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(gate_->lacked_descriptors());
  const MonoTime again = gate_->Advance(MonoNow());
  EXPECT_NE(again, MonoTime::Never());
  EXPECT_EQ(poll(&wait, 1, 0), 0) << "does not spin";
  gate_->Advance(again);
  EXPECT_EQ(poll(&wait, 1, 60000), 1);
  EXPECT_OK(RankComes());
}

TEST(EnterStoreTest, WhoIsNotThereOrSaysNothing) {
  auto listener = sockets::Listen("127.0.0.1");
  ASSERT_OK(listener);
  const std::string endpoint = sockets::EndpointOf(*listener);
  EXPECT_THAT(ConnectToStore({endpoint, kKey}, 0),
              StatusIs(StatusCode::kUnavailable, ::testing::HasSubstr("did not answer within 5s")));
  listener->Reset();
  EXPECT_THAT(ConnectToStore({endpoint, kKey}, 0), StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::store
