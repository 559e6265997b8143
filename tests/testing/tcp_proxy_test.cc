#include "tests/testing/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/loopback_socket.h"

namespace cadre {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

class TcpProxyTest : public testing::Test {
 protected:
  TcpProxyTest() {
    server_.Listen();
    proxy_ = std::make_unique<TcpProxy>(server_.port());
    client_ = ScopedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(proxy_->port()));
    EXPECT_EQ(connect(client_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    served_ = ScopedFd(accept4(server_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  static void Say(const ScopedFd& end, const std::string& text) {
    EXPECT_EQ(send(end.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Returns "" if nothing came in that time, and "end" if the connection has ended.
  static std::string Receive(const ScopedFd& end, absl::Duration timeout = kTimeout) {
    pollfd look = {end.get(), POLLIN, 0};
    if (poll(&look, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) != 1) return "";
    char bytes[64];
    const ssize_t n = recv(end.get(), bytes, sizeof(bytes), 0);
    return n <= 0 ? "end" : std::string(bytes, static_cast<size_t>(n));
  }

  const LoopbackSocket server_;
  std::unique_ptr<TcpProxy> proxy_;
  ScopedFd client_, served_;
};

TEST_F(TcpProxyTest, OneDirectionIsHeldAloneAndGoesOn) {
  Say(client_, "there");
  EXPECT_EQ(Receive(served_), "there");
  proxy_->Hold(TcpProxy::kToServer, true);
  // Once this has come back, the proxy's thread has seen the hold.
  Say(served_, "back");
  EXPECT_EQ(Receive(client_), "back");
  Say(client_, "held");
  Say(served_, "again");
  EXPECT_EQ(Receive(client_), "again");
  EXPECT_EQ(Receive(served_, absl::ZeroDuration()), "");
  proxy_->Hold(TcpProxy::kToServer, false);
  EXPECT_EQ(Receive(served_), "held");
}

TEST_F(TcpProxyTest, WhatIsDelayedIsLate) {
  proxy_->Delay(absl::Milliseconds(50));
  const absl::Time sent = absl::Now();
  Say(client_, "late");
  EXPECT_EQ(Receive(served_), "late");
  EXPECT_GE(absl::Now() - sent, absl::Milliseconds(49));
}

TEST_F(TcpProxyTest, AnswersAreLostAndTheConnectionWithThem) {
  proxy_->Lose(TcpProxy::kFromServer);
  Say(client_, "ask");
  EXPECT_TRUE(proxy_->AwaitArrived(TcpProxy::kToServer, 2, kTimeout));
  EXPECT_EQ(Receive(served_), "ask");
  Say(served_, "answer");
  proxy_->Reset();
  EXPECT_EQ(Receive(client_), "end");
  EXPECT_EQ(Receive(served_), "end");
  EXPECT_EQ(proxy_->arrived(TcpProxy::kFromServer), 0);
}

}  // namespace
}  // namespace cadre
