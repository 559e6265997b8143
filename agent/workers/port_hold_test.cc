#include "agent/workers/port_hold.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

// Binds `port` on the loopback address and listens; the socket, or -1.
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

TEST(PortHold, Acquire_TwoHolds_HaveDifferentPorts) {
  absl::StatusOr<PortHold> first = PortHold::Acquire("127.0.0.1");
  absl::StatusOr<PortHold> second = PortHold::Acquire("127.0.0.1");
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE(first->port(), 0);
  EXPECT_NE(first->port(), second->port());
}

TEST(PortHold, Release_PortCanBeListenedOnAtOnce) {
  absl::StatusOr<PortHold> hold = PortHold::Acquire("127.0.0.1");
  ASSERT_OK(hold);
  const uint16_t port = hold->port();
  hold->Release();
  EXPECT_EQ(hold->port(), 0);
  const int fd = Listen(port);
  EXPECT_GE(fd, 0);
  close(fd);
}

TEST(PortHold, Move_OnlyTheNewOneHolds) {
  absl::StatusOr<PortHold> hold = PortHold::Acquire("");
  ASSERT_OK(hold);
  const uint16_t port = hold->port();
  PortHold moved = *std::move(hold);
  EXPECT_EQ(moved.port(), port);
  EXPECT_EQ(hold->port(), 0);
}

TEST(PortHold, Acquire_AddressOfAnotherMachine_SaysWhich) {
  EXPECT_THAT(PortHold::Acquire("203.0.113.7").status().message(),
              testing::HasSubstr("203.0.113.7"));
}

}  // namespace
}  // namespace cadre::agent
