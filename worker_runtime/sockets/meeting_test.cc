#include "worker_runtime/sockets/meeting.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/sockets/messages.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::sockets {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

class MeshTest : public ::testing::Test {
 protected:
  void Listen(int size) {
    for (int rank = 0; rank < size; ++rank) {
      auto listener = sockets::Listen("127.0.0.1");
      ASSERT_OK(listener);
      endpoints_.push_back(EndpointOf(*listener));
      listeners_.push_back(*std::move(listener));
    }
  }

  Result<Mesh> Connect(int rank, const std::string& key, std::chrono::nanoseconds timeout = kLong) {
    MeshRequest request;
    request.rank = rank;
    request.size = static_cast<int>(endpoints_.size());
    request.parameters = {key, rank < encrypting_};
    request.purposes = {Purpose::kControl, Purpose::kMessages};
    request.endpoints = endpoints_;
    request.deadline = MonoNow() + timeout;
    request.check = [this] { return check_; };
    return ConnectMesh(request, listeners_[rank]);
  }

  std::vector<Mesh> ConnectAll() {
    std::vector<Mesh> meshes(endpoints_.size());
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < meshes.size(); ++rank) {
      ranks.emplace_back([this, rank, &meshes] {
        auto mesh = Connect(static_cast<int>(rank), "key");
        ASSERT_OK(mesh);
        meshes[rank] = *std::move(mesh);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return meshes;
  }

  // Expects that what rank `from` sends to `to` arrives there.
  static void ExpectConnected(const std::vector<Mesh>& meshes, int from, int to, Purpose purpose) {
    const char word = static_cast<char>('a' + from);
    ASSERT_EQ(meshes[from].at(purpose)[to].Send({&word, 1}), 1);
    pollfd one = {meshes[to].at(purpose)[from].fd(), POLLIN, 0};
    ASSERT_EQ(poll(&one, 1, 60000), 1);
    char heard = 0;
    ASSERT_EQ(meshes[to].at(purpose)[from].Receive(&heard, 1), 1);
    EXPECT_EQ(heard, word);
  }

  ScopedFd PendingConnection(int rank) {
    auto socket = StartConnecting(endpoints_[rank]);
    EXPECT_OK(socket);
    return socket.ok() ? *std::move(socket) : ScopedFd();
  }

  std::vector<std::string> endpoints_;
  std::vector<ScopedFd> listeners_;
  Status check_;
  int encrypting_ = 0;  // the number of ranks, from 0 on, that encrypt
};

TEST_F(MeshTest, EveryTwoRanksAreConnectedForEachPurpose) {
  constexpr int kRanks = 4;
  Listen(kRanks);
  const std::vector<Mesh> meshes = ConnectAll();
  for (int from = 0; from < kRanks; ++from) {
    for (int to = 0; to < kRanks; ++to) {
      if (from == to) continue;
      ExpectConnected(meshes, from, to, Purpose::kControl);
      ExpectConnected(meshes, from, to, Purpose::kMessages);
    }
  }
}

// Fault (access): Clients that do not authenticate connect to a rank's port -> They are dropped,
// because they do not know the generation's key, and the ranks connect without delay
TEST_F(MeshTest, StrangersDelayNobody) {
  Listen(2);
  // More silent connections than may wait, and one that speaks another protocol.
  std::vector<ScopedFd> silent;
  for (size_t i = 0; i < kMaxPendingConnections + 20; ++i) silent.push_back(PendingConnection(0));
  const ScopedFd loud = PendingConnection(0);
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n and more, so that it is enough";
  EXPECT_GE(send(loud.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  const MonoTime start = MonoNow();
  const std::vector<Mesh> meshes = ConnectAll();
  EXPECT_LT(MonoNow() - start, kHandshakeTimeout / 2);
  ExpectConnected(meshes, 1, 0, Purpose::kControl);
}

// Fault (access): A process without the generation's key answers at a rank's address -> It is not
// connected, and the error names the rank in whose place it answers; ranks that were displaced call
// again
TEST_F(MeshTest, WhoDoesNotKnowTheKeyIsNotConnected) {
  Listen(2);
  std::thread other([this] {
    EXPECT_THAT(Connect(1, "another"),
                StatusIs(StatusCode::kPermissionDenied, HasSubstr("rank 0")));
  });
  EXPECT_THAT(Connect(0, "key", std::chrono::seconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
  other.join();
}

// A proxy between two ranks, or a rank of another version, may close each connection after the
// hello. The rank must not retry silently until its deadline.
//
// Fault (collective): A rank's handshake is refused by the rank that it connects to -> It says so
// after 10 s
TEST_F(MeshTest, ARankWhoseHelloIsNotTakenIsToldSoLongBeforeItsTime) {
  Listen(2);
  std::atomic<bool> done{false};
  // Acts as rank 0: accepts connections and closes them.
  std::thread closer([&] {
    while (!done) {
      pollfd one = {listeners_[0].get(), POLLIN, 0};
      if (poll(&one, 1, 10) <= 0) continue;
      const ScopedFd taken(accept4(listeners_[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
      char bytes[40];
      if (taken.ok()) recv(taken.get(), bytes, sizeof(bytes), 0);
    }
  });
  const MonoTime start = MonoNow();
  EXPECT_THAT(Connect(1, "key"),
              StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 at 127.0.0.1:"), HasSubstr("closed it each time"))));
  EXPECT_LT(MonoNow() - start, 2 * kHandshakeTimeout);
  done = true;
  closer.join();
}

// Fault (collective): A rank waits for another one whose handshakes it refuses -> Its error says
// what it refused last
TEST_F(MeshTest, WhoWaitsForARankSaysWhatItRefused) {
  Listen(2);
  const ScopedFd stranger = PendingConnection(0);
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n and more, so that it is enough";
  EXPECT_GE(send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  EXPECT_THAT(Connect(0, "key", std::chrono::seconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 1"), HasSubstr("\"GET / HT\""))));
}

TEST_F(MeshTest, WhatRanksSayToEachOtherMayBeEncrypted) {
  Listen(2);
  encrypting_ = 2;
  const std::vector<Mesh> meshes = ConnectAll();
  ExpectConnected(meshes, 0, 1, Purpose::kMessages);
  ExpectConnected(meshes, 1, 0, Purpose::kMessages);
  // The transmitted record is longer than the word and does not contain it.
  ASSERT_EQ(meshes[0].at(Purpose::kControl)[1].Send("word"), 4);
  pollfd one = {meshes[1].at(Purpose::kControl)[0].fd(), POLLIN, 0};
  ASSERT_EQ(poll(&one, 1, 60000), 1);
  char bytes[100];
  const ssize_t crossed = recv(one.fd, bytes, sizeof(bytes), 0);
  EXPECT_EQ(crossed, wire::kRecordHeadBytes + 4 + wire::kRecordTagBytes);
  EXPECT_THAT(std::string(bytes, crossed), ::testing::Not(HasSubstr("word")));
}

// Fault (collective): One rank encrypts and another one does not -> Both ranks get an error that
// names the other
TEST_F(MeshTest, RanksThatDifferInEncryptionNameEachOther) {
  Listen(2);
  encrypting_ = 1;
  const auto differ = StatusIs(StatusCode::kFailedPrecondition,
                               HasSubstr("rank 0 encrypts what it sends and rank 1 does not"));
  std::thread other([&] { EXPECT_THAT(Connect(1, "key"), differ); });
  EXPECT_THAT(Connect(0, "key"), differ);
  other.join();
}

TEST_F(MeshTest, SaysWhoCannotBeReached) {
  Listen(2);
  listeners_[0].Reset();
  EXPECT_THAT(Connect(1, "key"), StatusIs(StatusCode::kUnavailable,
                                          HasSubstr("rank 0 cannot be reached at 127.0.0.1:")));
}

// Fault (collective): A rank is lost while the ranks connect to each other -> The other ranks' wait
// ends with the generation, long before their own timeout
TEST_F(MeshTest, TheWaitForTheOthersEndsWithTheirGeneration) {
  Listen(2);
  check_ = AbortedError("the generation has ended");
  EXPECT_THAT(Connect(0, "key"), StatusIs(StatusCode::kAborted));
}

PairMeeting PairOf(Worker& worker) {
  return {"pair", worker.rank(), MonoNow() + kLong, [] { return OkStatus(); },
          [&worker](const std::string& key) { return worker.Get(key, kLong); }};
}

// Opens more silent connections than may wait there, before the other rank of the pair connects.
std::vector<ScopedFd> StrangersAt(const std::string& endpoint) {
  std::vector<ScopedFd> strangers;
  for (size_t i = 0; i < kMaxPendingConnections + 20; ++i) {
    auto socket = StartConnecting(endpoint);
    EXPECT_OK(socket);
    if (socket.ok()) strangers.push_back(*std::move(socket));
  }
  return strangers;
}

// Fault (checkpoint): More than 64 silent clients connect to the port of a checkpoint's partner
// before the partner does -> Each pair connects in less than half of the 10 s that such clients are
// given
TEST(MeetingTest, StrangersWhoComeFirstDelayNoPair) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    std::vector<ScopedFd> strangers;
    if (worker.rank() == 1) {
      const auto endpoint = worker.Get("pair/0", kLong);
      ASSERT_OK(endpoint);
      strangers = StrangersAt(*endpoint);
    }
    const MonoTime start = MonoNow();
    const auto connection = MeetPair(worker, PairOf(worker));
    ASSERT_OK(connection);
    EXPECT_LT(MonoNow() - start, kHandshakeTimeout / 2);
    const MessageChannel channel(*connection, worker.rank(), 1 - worker.rank());
    std::vector<float> sent = {1, 2}, got(2);
    const MonoTime deadline = MonoNow() + kLong;
    EXPECT_OK(channel.Send({sent.data(), 2, DataType::kFloat32}, 0, deadline));
    EXPECT_OK(channel.Receive({got.data(), 2, DataType::kFloat32}, 0, deadline));
    EXPECT_EQ(got, sent);
  });
}

}  // namespace

}  // namespace cadre::sockets
