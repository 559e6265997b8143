#include "agent/workers/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/torch_store/agent_store.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

// Binds `port` on the loopback address and listens; returns the socket, or -1.
int Listen(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

TEST(PortReservation, Acquire_TwoHolds_HaveDifferentPorts) {
  absl::StatusOr<PortReservation> first = PortReservation::Acquire("127.0.0.1");
  absl::StatusOr<PortReservation> second = PortReservation::Acquire("127.0.0.1");
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE(first->port(), 0);
  EXPECT_NE(first->port(), second->port());
}

TEST(PortReservation, Release_PortCanBeListenedOnAtOnce) {
  absl::StatusOr<PortReservation> hold = PortReservation::Acquire("127.0.0.1");
  ASSERT_OK(hold);
  const uint16_t port = hold->port();
  hold->Release();
  EXPECT_EQ(hold->port(), 0);
  const int fd = Listen(port);
  EXPECT_GE(fd, 0);
  close(fd);
}

TEST(PortReservation, Move_OnlyTheNewOneHolds) {
  absl::StatusOr<PortReservation> hold = PortReservation::Acquire("");
  ASSERT_OK(hold);
  const uint16_t port = hold->port();
  PortReservation moved = *std::move(hold);
  EXPECT_EQ(moved.port(), port);
  EXPECT_EQ(hold->port(), 0);
}

TEST(PortReservation, Acquire_AddressOfAnotherMachine_SaysWhich) {
  EXPECT_THAT(PortReservation::Acquire("203.0.113.7").status().message(),
              testing::HasSubstr("203.0.113.7"));
}

using ::testing::HasSubstr;

TEST(PortOwner, TheProcessThatListens_IsNamed) {
  const std::string own = absl::StrCat("(pid ", getpid(), ")");
  for (const char* const at : {"127.0.0.1", "0.0.0.0", "::1", "::"}) {
    const auto listener = ListenAt(at, 0);
    if (absl::IsUnavailable(listener.status())) continue;  // a machine without IPv6
    ASSERT_OK(listener);
    EXPECT_THAT(WhoListensAt(at, PortOf(*listener)), HasSubstr(own)) << at;
    EXPECT_THAT(WhoListensAt("node1", PortOf(*listener)), HasSubstr(own)) << at;
  }
}

TEST(PortOwner, WhoListensAtAnotherAddress_IsNot) {
  const auto all = ListenAt("0.0.0.0", 0), one = ListenAt("127.0.0.1", 0);
  ASSERT_OK(all);
  ASSERT_OK(one);
  EXPECT_NE(WhoListensAt("127.0.0.2", PortOf(*all)), "");
  EXPECT_EQ(WhoListensAt("127.0.0.2", PortOf(*one)), "");
}

TEST(PortOwner, NobodyListens) {
  uint16_t port = 0;
  {
    const auto listener = ListenAt("127.0.0.1", 0);
    ASSERT_OK(listener);
    port = PortOf(*listener);
  }
  EXPECT_EQ(WhoListensAt("127.0.0.1", port), "");
}

}  // namespace
}  // namespace cadre::agent
