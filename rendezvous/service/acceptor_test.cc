// Tests with both ends of the sockets in this process.
#include "rendezvous/service/acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/service/listening.h"

namespace cadre::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::chrono::seconds kClientTimeout(20);

class AcceptorTest : public ::testing::Test {
 protected:
  void Listen(size_t max, absl::Duration timeout) {
    AcceptorOptions options;
    options.host = "127.0.0.1";
    options.max_pending = max;
    options.timeout = timeout;
    options.limits = limits_;
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

  // A connection that has sent something.
  ScopedFd Connect() const {
    ScopedFd client = ConnectSilently();
    EXPECT_EQ(send(client.get(), "PRI", 3, 0), 3);
    return client;
  }
  ScopedFd ConnectSilently() const {
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
    return changed_.wait_for(lock, kClientTimeout, [&] { return count_ >= number; });
  }
  size_t Taken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }
  Peer PeerOfTaken(size_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    getpeername(taken_[number].get(), reinterpret_cast<sockaddr*>(&address), &size);
    return {"127.0.0.1", ntohs(address.sin_port)};
  }
  // Waits until the server closes the connection.
  static bool AwaitEnd(const ScopedFd& client, std::chrono::milliseconds timeout = kClientTimeout) {
    pollfd end = {client.get(), POLLIN, 0};
    if (poll(&end, 1, static_cast<int>(timeout.count())) <= 0) return false;
    char byte = 0;
    return read(client.get(), &byte, 1) <= 0;
  }
  static bool IsOpen(const ScopedFd& client) {
    return !AwaitEnd(client, std::chrono::milliseconds(0));
  }

  AdmissionLimits limits_;
  std::unique_ptr<Acceptor> acceptor_;
  // Whether `take` keeps the connections open.
  bool keeps_ = true;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ScopedFd> taken_;
  // The first byte of the last connection.
  char first_ = 0;
  size_t count_ = 0;
};

TEST_F(AcceptorTest, WhoSaysNothingIsClosed_AndWhoShowedATokenIsNot) {
  Listen(9, absl::Milliseconds(200));
  Start();
  const ScopedFd known = Connect();
  ASSERT_TRUE(AwaitTaken(1));
  acceptor_->Admit(PeerOf(known), nullptr);
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

TEST_F(AcceptorTest, ARefusedConnectionIsClosedBeforeItsTimeIsUp) {
  Listen(9, absl::InfiniteDuration());
  Start();
  const ScopedFd refused = Connect(), other = Connect();
  ASSERT_TRUE(AwaitTaken(2));
  acceptor_->Refuse(PeerOf(refused));
  EXPECT_TRUE(AwaitEnd(refused));
  EXPECT_TRUE(IsOpen(other));
}

TEST_F(AcceptorTest, WhereTheSourcesBudgetIsUsedUpConnectionsWait_AndEndWhereThatTakesLong) {
  limits_.burst = 2 * limits_.connection;
  limits_.per_second = 0;
  Listen(9, absl::InfiniteDuration());
  Start();
  const ScopedFd first = Connect(), second = Connect();
  ASSERT_TRUE(AwaitTaken(2));
  const ScopedFd third = Connect();
  EXPECT_TRUE(AwaitEnd(third));
  EXPECT_EQ(Taken(), 2u);
  acceptor_->Admit(PeerOf(first), nullptr);
  const ScopedFd again = Connect();
  ASSERT_TRUE(AwaitTaken(3));
  EXPECT_EQ(PeerOfTaken(2), PeerOf(again));
}

// A connection that gRPC closes must not stay open because of the second descriptor.
TEST_F(AcceptorTest, AConnectionThatItsOwnerShutsDownEnds) {
  Listen(9, absl::InfiniteDuration());
  keeps_ = false;
  Start();
  const ScopedFd client = Connect();
  ASSERT_TRUE(AwaitTaken(1));
  shutdown(client.get(), SHUT_WR);
  EXPECT_TRUE(AwaitEnd(client));
}

TEST_F(AcceptorTest, NothingIsGivenAwayBeforeItsFirstByte) {
  Listen(2, absl::InfiniteDuration());
  Start();
  const ScopedFd gone = ConnectSilently();
  shutdown(gone.get(), SHUT_WR);
  EXPECT_TRUE(AwaitEnd(gone)) << "it has ended without a word";
  const ScopedFd silent = ConnectSilently(), speaks = Connect();
  ASSERT_TRUE(AwaitTaken(1));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_EQ(count_, 1u);
    EXPECT_EQ(first_, 'P');
    char all[4] = {};
    EXPECT_EQ(recv(taken_[0].get(), all, 3, MSG_WAITALL), 3) << "it was only looked at";
  }
  // It counts as unauthenticated, like any other.
  const ScopedFd third = ConnectSilently();
  EXPECT_TRUE(AwaitEnd(silent));
}

// Limits the number of descriptors that can be opened, while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(int max) {
    // Fills gaps that another test may have left below the highest descriptor.
    int highest = 2;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      highest = std::max(highest, std::stoi(entry.path().filename()));
    }
    do {
      fillers_.emplace_back(dup(0));
    } while (fillers_.back().ok() && fillers_.back().get() < highest);
    const int next = fillers_.back().get();
    fillers_.pop_back();
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next + max);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  std::vector<ScopedFd> fillers_;
  rlimit before_ = {};
};

// Fault (access): A client with a token connects when a server has one descriptor left -> It is
// served, and the oldest connection that has not authenticated is closed
TEST_F(AcceptorTest, WhoComesWithTheLastDescriptorIsServed_AndTheOldestGivesWay) {
  Listen(100, absl::InfiniteDuration());
  const ScopedFd first = Connect(), second = Connect();
  // Room for one connection with its second descriptor, and half of another.
  auto few = std::make_optional<FewDescriptors>(3);
  Start();
  EXPECT_TRUE(AwaitTaken(1));
  EXPECT_EQ(PeerOfTaken(0), PeerOf(second));
  EXPECT_TRUE(AwaitEnd(first));
  EXPECT_TRUE(IsOpen(second));
  few.reset();
}

TEST_F(AcceptorTest, OutOfDescriptors_ItGoesOnAfterwards) {
  Listen(100, absl::InfiniteDuration());
  std::vector<ScopedFd> clients;
  for (int i = 0; i < 12; ++i) clients.push_back(Connect());
  // Room for one connection with its second descriptor, and half of another.
  auto few = std::make_optional<FewDescriptors>(3);
  Start();
  EXPECT_TRUE(AwaitEnd(clients[0])) << "nobody made room";
  few.reset();
  const ScopedFd later = Connect();
  const Peer peer = PeerOf(later);
  // All connections that waited came before it.
  const MonoTime deadline = MonoNow() + absl::FromChrono(kClientTimeout);
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

// Fault (network): A node connects to a server over a link-local IPv6 address -> The server
// recognizes the connection by its address without the interface, so that it stays once the node
// has shown its token
TEST(PeerOf, ReadsWhatGrpcSays) {
  EXPECT_EQ(PeerOf("ipv4:10.0.0.1:29400"), (Peer{"10.0.0.1", 29400}));
  EXPECT_EQ(PeerOf("ipv6:%5B::1%5D:7"), (Peer{"::1", 7}));
  EXPECT_EQ(PeerOf("ipv6:[fe80::2]:7"), (Peer{"fe80::2", 7}));
  // A link-local address with the number or the name of the interface.
  EXPECT_EQ(PeerOf("ipv6:%5Bfe80::1%252%5D:7"), (Peer{"fe80::1", 7}));
  EXPECT_EQ(PeerOf("ipv6:%5Bfe80::1%25eth0%5D:7"), (Peer{"fe80::1", 7}));
  for (const char* none : {"", "unix:/a", "ipv4:10.0.0.1", "ipv4:10.0.0.1:x"}) {
    EXPECT_EQ(PeerOf(none), std::nullopt) << none;
  }
}

constexpr absl::Duration kPendingTimeout = absl::Seconds(10);

MonoTime At(double seconds) { return MonoTime() + absl::Seconds(seconds); }

TEST(Newcomers, WhoShowsATokenIsNoneAnyMore) {
  PendingConnections pending(2, kPendingTimeout);
  EXPECT_EQ(pending.Add({"10.0.0.1", 1}, "10.0.0.1", At(0)), std::nullopt);
  EXPECT_TRUE(pending.Remove({"10.0.0.1", 1}));
  EXPECT_FALSE(pending.Remove({"10.0.0.1", 1}));
  EXPECT_EQ(pending.size(), 0u);
  EXPECT_EQ(pending.NextDeadline(), MonoTime::Never());
}

TEST(Newcomers, WhoSaysNothingIsOverdue) {
  PendingConnections pending(9, kPendingTimeout);
  pending.Add({"a", 1}, "a", At(0));
  pending.Add({"b", 1}, "b", At(3));
  EXPECT_EQ(pending.NextDeadline(), At(10));
  EXPECT_THAT(pending.TakeOverdue(At(9.9)), IsEmpty());
  EXPECT_THAT(pending.TakeOverdue(At(10)), ElementsAre(Peer{"a", 1}));
  EXPECT_EQ(pending.NextDeadline(), At(13));
}

TEST(Newcomers, ADeadlineOfItsOwn) {
  PendingConnections pending(9, kPendingTimeout);
  pending.Add({"a", 1}, "a", At(0));
  pending.Add({"b", 1}, "b", At(0));
  EXPECT_TRUE(pending.SetDeadline({"b", 1}, At(1)));
  EXPECT_FALSE(pending.SetDeadline({"c", 1}, At(1)));
  EXPECT_EQ(pending.NextDeadline(), At(1));
  EXPECT_THAT(pending.TakeOverdue(At(1)), ElementsAre(Peer{"b", 1}));
  EXPECT_TRUE(pending.SetDeadline({"a", 1}, At(30)));
  EXPECT_EQ(pending.NextDeadline(), At(30));
}

TEST(Newcomers, WhereThereAreTooMany_TheOldestOfTheSourceWithTheMostGivesWay) {
  PendingConnections pending(4, kPendingTimeout);
  pending.Add({"quiet", 1}, "quiet", At(0));
  for (int port = 1; port <= 3; ++port) pending.Add({"many", port}, "many", At(1));
  EXPECT_EQ(pending.Add({"another", 1}, "another", At(2)), (Peer{"many", 1}));
  EXPECT_EQ(pending.Add({"many", 4}, "many", At(2)), (Peer{"many", 2}));
  EXPECT_EQ(pending.size(), 4u);
  EXPECT_TRUE(pending.Remove({"quiet", 1}));
}

TEST(Newcomers, APortThatComesAgainIsANewConnection) {
  PendingConnections pending(4, kPendingTimeout);
  pending.Add({"a", 1}, "a", At(0));
  pending.Add({"a", 1}, "a", At(5));
  EXPECT_EQ(pending.size(), 1u);
  EXPECT_EQ(pending.NextDeadline(), At(15));
}

TEST(Newcomers, WithNobodyThere_NobodyGivesWay) {
  EXPECT_EQ(PendingConnections(1, kPendingTimeout).TakeOldestOfTheMost(), std::nullopt);
}

// A socket that listens on a port chosen by the kernel.
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

// Launchers of one machine that start together: one that is refused relies on the other.
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
  // 192.0.2.0/24 is reserved for documentation: no machine has it.
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
