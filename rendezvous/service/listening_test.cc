#include "rendezvous/service/listening.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

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

// The launchers of one machine that start together: whoever is refused counts on the other.
TEST(Listening, InTheSameMoment_OneOfTwoHasThePort) {
  constexpr int kRounds = 500;
  for (int round = 0; round < kRounds; ++round) {
    int port = 0;
    {
      const Listener listener;
      port = listener.port();
    }
    std::atomic<int> here = 0;
    std::array<absl::Status, 2> refused;
    std::array<Listening, 2> listening;
    const auto start = [&](size_t which) {
      for (++here; here < 2;) std::this_thread::yield();
      absl::StatusOr<Listening> got = Listen("127.0.0.1", port);
      refused[which] = got.status();
      if (got.ok()) listening[which] = *std::move(got);
    };
    std::thread other(start, 1);
    start(0);
    other.join();
    ASSERT_NE(refused[0].ok(), refused[1].ok()) << round << ": " << refused[0] << refused[1];
    EXPECT_THAT(refused[refused[0].ok() ? 1 : 0], StatusIs(absl::StatusCode::kAlreadyExists));
  }
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
