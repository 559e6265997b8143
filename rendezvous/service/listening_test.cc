#include "rendezvous/service/listening.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status_matchers.h"

namespace cadre::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A socket that listens on a port of the kernel's choice.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, plain, size) == 0 && listen(fd_, 1) == 0 && getsockname(fd_, plain, &size) == 0) {
      port_ = ntohs(address.sin_port);
    }
  }
  ~Listener() { close(fd_); }
  int port() const { return port_; }

 private:
  const int fd_;
  int port_ = 0;
};

TEST(Listening, FreePort) { EXPECT_OK(CheckListen("127.0.0.1", 0)); }

TEST(Listening, PortInUse) {
  const Listener listener;
  ASSERT_NE(listener.port(), 0);
  EXPECT_THAT(CheckListen("127.0.0.1", listener.port()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("port " + std::to_string(listener.port()) + " on 127.0.0.1"),
                             HasSubstr("is in use"))));
}

TEST(Listening, AddressOfAnotherMachine) {
  // 192.0.2.0/24 is kept for documentation: nobody has it.
  EXPECT_THAT(CheckListen("192.0.2.1", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not an address of this")));
}

TEST(Listening, NameThatDoesNotResolve) {
  EXPECT_THAT(CheckListen("no such host", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not resolve")));
}

TEST(Listening, PortOutOfRange) {
  EXPECT_THAT(CheckListen("127.0.0.1", 65536), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckListen("127.0.0.1", -1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Listening, Loopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1"}) {
    const absl::StatusOr<bool> loopback = IsLoopback(host);
    ASSERT_OK(loopback);
    EXPECT_TRUE(*loopback) << host;
  }
  for (const char* host : {"0.0.0.0", "192.0.2.1", "::"}) {
    const absl::StatusOr<bool> loopback = IsLoopback(host);
    ASSERT_OK(loopback);
    EXPECT_FALSE(*loopback) << host;
  }
}

TEST(HostPort, BracketsIpV6) {
  EXPECT_EQ(HostPort("10.0.0.1", 1), "10.0.0.1:1");
  EXPECT_EQ(HostPort("::1", 1), "[::1]:1");
  EXPECT_EQ(HostPort("[::1]", 1), "[::1]:1");
}

}  // namespace
}  // namespace cadre::service
