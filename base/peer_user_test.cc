#include "base/peer_user.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/socket_table.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr uid_t kOther = 12345;

class PeerUserTest : public testing::TestWithParam<int> {
 protected:
  PeerUserTest() : listener_(socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage at = {};
    at.ss_family = static_cast<sa_family_t>(GetParam());
    if (GetParam() == AF_INET) {
      reinterpret_cast<sockaddr_in&>(at).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      reinterpret_cast<sockaddr_in6&>(at).sin6_addr = in6addr_any;
    }
    has_ = bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), Size()) == 0 &&
           listen(listener_.get(), 4096) == 0;
    socklen_t size = sizeof(at);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = GetParam() == AF_INET ? reinterpret_cast<sockaddr_in&>(at).sin_port
                                  : reinterpret_cast<sockaddr_in6&>(at).sin6_port;
  }
  socklen_t Size() const {
    return GetParam() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  }
  // Connects over IPv4, also to a listener of IPv6.
  ScopedFd Connect() const {
    ScopedFd own(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = port_;
    EXPECT_EQ(connect(own.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return own;
  }
  ScopedFd Accept() const {
    return ScopedFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  const ScopedFd listener_;
  bool has_ = false;
  in_port_t port_ = 0;
};

TEST_P(PeerUserTest, AnOwnProcessIsServed) {
  if (!has_) GTEST_SKIP() << "no IPv6 here";
  const ScopedFd client = Connect();
  const PeerUser peer = PeerUserOf(Accept().get());
  EXPECT_EQ(peer.where, PeerUser::Where::kHere);
  EXPECT_EQ(peer.uid, geteuid());
  EXPECT_TRUE(MayServe(peer));
}

TEST_P(PeerUserTest, AnotherUsersProcessIsNot) {
  if (!has_) GTEST_SKIP() << "no IPv6 here";
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(kOther) != 0) _exit(1);
    const ScopedFd client = Connect();
    char byte;
    _exit(read(done[0], &byte, 1) == 1 ? 0 : 1);
  }
  const PeerUser peer = PeerUserOf(Accept().get());
  EXPECT_EQ(peer.where, PeerUser::Where::kHere);
  EXPECT_EQ(peer.uid, kOther);
  EXPECT_FALSE(MayServe(peer));
  EXPECT_EQ(UserText(peer), "a process of user 12345");
  EXPECT_EQ(write(done[1], "x", 1), 1);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  close(done[0]);
  close(done[1]);
}

// The kernel names root as the user of a socket that no process has open, although what its process
// had sent can still be read.
TEST_P(PeerUserTest, WhoHasGoneIsNobody) {
  if (!has_) GTEST_SKIP() << "no IPv6 here";
  Connect();
  const PeerUser peer = PeerUserOf(Accept().get());
  EXPECT_EQ(peer.where, PeerUser::Where::kGone);
  EXPECT_FALSE(MayServe(peer));
}

TEST_P(PeerUserTest, TheAnswerCostsLittleAmongThousandsOfSockets) {
  if (!has_) GTEST_SKIP() << "no IPv6 here";
  std::vector<ScopedFd> others;
  for (int i = 0; i < 400; ++i) {
    others.push_back(Connect());
    others.push_back(Accept());
  }
  const ScopedFd client = Connect();
  const ScopedFd accepted = Accept();
  constexpr int kTimes = 200;
  const MonoTime before = MonoNow();
  for (int i = 0; i < kTimes; ++i) EXPECT_TRUE(MayServe(PeerUserOf(accepted.get())));
  const absl::Duration each = (MonoNow() - before) / kTimes;
  RecordProperty("nanoseconds", static_cast<int>(absl::ToInt64Nanoseconds(each)));
  // The bound is a hundred times the usual time on an idle machine.
  EXPECT_LT(each, absl::Milliseconds(1));
}

INSTANTIATE_TEST_SUITE_P(Families, PeerUserTest, testing::Values(AF_INET, AF_INET6));

SocketEnd OwnEnd(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return SocketEndOf(address);
}

uint64_t InodeOf(int socket) {
  struct stat info = {};
  EXPECT_EQ(fstat(socket, &info), 0);
  return info.st_ino;
}

std::optional<TcpSocket> Find(uint64_t inode) {
  std::optional<TcpSocket> found;
  EXPECT_TRUE(ForEachTcpSocket([&](const TcpSocket& socket) {
    if (socket.inode == inode) found = socket;
    return !found.has_value();
  }));
  return found;
}

TEST(SocketTableTest, AListenerAndAConnectionAreFoundWithTheirEndsAndUser) {
  const ScopedFd listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0) {
    GTEST_SKIP() << "no IPv6 here";
  }
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const uint16_t port = OwnEnd(listener.get()).port;
  const auto listens = Find(InodeOf(listener.get()));
  ASSERT_TRUE(listens.has_value());
  EXPECT_TRUE(listens->listens);
  EXPECT_EQ(listens->own.port, port);
  EXPECT_TRUE(listens->own.IsAnyAddress());

  // The listener of IPv6 accepts connections over IPv4 too.
  const ScopedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = port;
  ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const ScopedFd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto client_socket = Find(InodeOf(client.get())),
             server_socket = Find(InodeOf(server.get()));
  ASSERT_TRUE(client_socket.has_value() && server_socket.has_value());
  EXPECT_TRUE(client_socket->own == OwnEnd(client.get()));
  EXPECT_TRUE(client_socket->own == server_socket->other &&
              client_socket->other == server_socket->own);
  EXPECT_EQ(client_socket->other.family, AF_INET);
  EXPECT_FALSE(client_socket->listens);
  EXPECT_EQ(client_socket->uid, geteuid());
}

}  // namespace

}  // namespace cadre
