// With sockets of this process on both sides.
#include "rendezvous/service/acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"

namespace cadre::service {
namespace {

constexpr std::chrono::seconds kPatience(20);

class AcceptorTest : public ::testing::Test {
 protected:
  void Listen(size_t most, absl::Duration patience, bool awaits_first_byte = false) {
    AcceptorOptions options;
    options.awaits_first_byte = awaits_first_byte;
    options.host = "127.0.0.1";
    options.most_newcomers = most;
    options.patience = patience;
    auto acceptor = Acceptor::Listen(options);
    ASSERT_OK(acceptor);
    acceptor_ = *std::move(acceptor);
  }
  void Start() {
    acceptor_->Start([this](ScopedFd connection, char first) {
      const std::lock_guard<std::mutex> lock(mutex_);
      first_ = first;
      if (keeps_) taken_.push_back(std::move(connection));
      ++count_;
      changed_.notify_all();
    });
  }
  void TearDown() override { acceptor_.reset(); }

  ScopedFd Connect() const {
    ScopedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(acceptor_->port()));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return client;
  }
  static Peer PeerOf(const ScopedFd& client) {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    getsockname(client.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return {"127.0.0.1", ntohs(address.sin_port)};
  }
  bool AwaitTaken(size_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count_ >= number; });
  }
  // Whether the server closes it.
  static bool AwaitEnd(const ScopedFd& client, std::chrono::milliseconds patience = kPatience) {
    pollfd end = {client.get(), POLLIN, 0};
    if (poll(&end, 1, static_cast<int>(patience.count())) <= 0) return false;
    char byte = 0;
    return read(client.get(), &byte, 1) <= 0;
  }
  static bool IsOpen(const ScopedFd& client) {
    return !AwaitEnd(client, std::chrono::milliseconds(0));
  }

  std::unique_ptr<Acceptor> acceptor_;
  // Whether `take` keeps what it gets open.
  bool keeps_ = true;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ScopedFd> taken_;
  // Of the last one.
  char first_ = 0;
  size_t count_ = 0;
};

TEST_F(AcceptorTest, WhoSaysNothingIsClosed_AndWhoShowedATokenIsNot) {
  Listen(9, absl::Milliseconds(200));
  Start();
  const ScopedFd known = Connect();
  ASSERT_TRUE(AwaitTaken(1));
  acceptor_->Admit(PeerOf(known));
  const ScopedFd stranger = Connect();
  EXPECT_TRUE(AwaitEnd(stranger));
  EXPECT_TRUE(IsOpen(known));
}

TEST_F(AcceptorTest, WhereThereAreTooManyTheOldestIsClosed) {
  Listen(2, absl::InfiniteDuration());
  Start();
  std::vector<ScopedFd> clients;
  for (size_t i = 0; i < 3; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(AwaitTaken(i + 1));
  }
  EXPECT_TRUE(AwaitEnd(clients[0]));
  EXPECT_TRUE(IsOpen(clients[1]));
  EXPECT_TRUE(IsOpen(clients[2]));
}

// What gRPC closes by itself must not stay open for its second descriptor's sake.
TEST_F(AcceptorTest, AConnectionThatItsOwnerShutsDownEnds) {
  Listen(9, absl::InfiniteDuration());
  keeps_ = false;
  Start();
  const ScopedFd client = Connect();
  ASSERT_TRUE(AwaitTaken(1));
  shutdown(client.get(), SHUT_WR);
  EXPECT_TRUE(AwaitEnd(client));
}

TEST_F(AcceptorTest, WhereTheFirstByteIsAwaitedNothingIsGivenAwayBefore) {
  Listen(2, absl::InfiniteDuration(), /*awaits_first_byte=*/true);
  Start();
  const ScopedFd gone = Connect();
  shutdown(gone.get(), SHUT_WR);
  EXPECT_TRUE(AwaitEnd(gone)) << "it has ended without a word";
  const ScopedFd silent = Connect(), speaks = Connect();
  ASSERT_EQ(send(speaks.get(), "PRI", 3, 0), 3);
  ASSERT_TRUE(AwaitTaken(1));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_EQ(count_, 1u);
    EXPECT_EQ(first_, 'P');
    char all[4] = {};
    EXPECT_EQ(recv(taken_[0].get(), all, 3, MSG_WAITALL), 3) << "it was only looked at";
  }
  // It counts as a newcomer like any other.
  const ScopedFd third = Connect();
  EXPECT_TRUE(AwaitEnd(silent));
}

TEST_F(AcceptorTest, WhoComesWithTheLastDescriptorIsServed_AndTheOldestGivesWay) {
  Listen(100, absl::InfiniteDuration());
  const ScopedFd first = Connect(), second = Connect();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  // Room for one connection with its second descriptor, and a half.
  few.rlim_cur = static_cast<rlim_t>(ScopedFd(dup(0)).get()) + 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Start();
  EXPECT_TRUE(AwaitTaken(2));
  EXPECT_TRUE(AwaitEnd(first));
  EXPECT_TRUE(IsOpen(second));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(AcceptorTest, OutOfDescriptors_ItGoesOnAfterwards) {
  Listen(100, absl::InfiniteDuration());
  std::vector<ScopedFd> clients;
  for (int i = 0; i < 12; ++i) clients.push_back(Connect());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  // Room for one connection with its second descriptor, and a half.
  few.rlim_cur = static_cast<rlim_t>(ScopedFd(dup(0)).get()) + 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Start();
  EXPECT_TRUE(AwaitEnd(clients[0])) << "nobody made room";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const ScopedFd later = Connect();
  const Peer peer = PeerOf(later);
  // All that waited came before it.
  const MonoTime deadline = MonoNow() + absl::FromChrono(kPatience);
  bool there = false;
  while (!there && MonoNow() < deadline) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const ScopedFd& connection : taken_) {
      sockaddr_in address = {};
      socklen_t size = sizeof(address);
      there = there ||
              (getpeername(connection.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
               ntohs(address.sin_port) == peer.port);
    }
  }
  EXPECT_TRUE(there);
}

TEST(PeerOf, ReadsWhatGrpcSays) {
  EXPECT_EQ(PeerOf("ipv4:10.0.0.1:29400"), (Peer{"10.0.0.1", 29400}));
  EXPECT_EQ(PeerOf("ipv6:%5B::1%5D:7"), (Peer{"::1", 7}));
  EXPECT_EQ(PeerOf("ipv6:[fe80::2]:7"), (Peer{"fe80::2", 7}));
  // A link-local caller's, with the number or the name of the interface.
  EXPECT_EQ(PeerOf("ipv6:%5Bfe80::1%252%5D:7"), (Peer{"fe80::1", 7}));
  EXPECT_EQ(PeerOf("ipv6:%5Bfe80::1%25eth0%5D:7"), (Peer{"fe80::1", 7}));
  for (const char* none : {"", "unix:/a", "ipv4:10.0.0.1", "ipv4:10.0.0.1:x"}) {
    EXPECT_EQ(PeerOf(none), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace cadre::service
