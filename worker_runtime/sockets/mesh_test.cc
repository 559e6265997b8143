#include "worker_runtime/sockets/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/sockets/endpoint.h"

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
    request.terms = {key, rank < encrypting_};
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

  // What rank `from` says to `to` arrives there.
  static void ExpectConnected(const std::vector<Mesh>& meshes, int from, int to, Purpose purpose) {
    const char word = static_cast<char>('a' + from);
    ASSERT_EQ(meshes[from].at(purpose)[to].Send({&word, 1}), 1);
    pollfd one = {meshes[to].at(purpose)[from].fd(), POLLIN, 0};
    ASSERT_EQ(poll(&one, 1, 60000), 1);
    char heard = 0;
    ASSERT_EQ(meshes[to].at(purpose)[from].Receive(&heard, 1), 1);
    EXPECT_EQ(heard, word);
  }

  ScopedFd Stranger(int rank) {
    auto socket = StartConnecting(endpoints_[rank]);
    EXPECT_OK(socket);
    return socket.ok() ? *std::move(socket) : ScopedFd();
  }

  std::vector<std::string> endpoints_;
  std::vector<ScopedFd> listeners_;
  Status check_;
  int encrypting_ = 0;  // ranks, the first ones
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

TEST_F(MeshTest, StrangersDelayNobody) {
  Listen(2);
  // Those who say nothing, more than may wait, and one who says something else.
  std::vector<ScopedFd> silent;
  for (size_t i = 0; i < kMaxStrangers + 20; ++i) silent.push_back(Stranger(0));
  const ScopedFd loud = Stranger(0);
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n and more, so that it is enough";
  EXPECT_GE(send(loud.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  const MonoTime start = MonoNow();
  const std::vector<Mesh> meshes = ConnectAll();
  EXPECT_LT(MonoNow() - start, kHandshakePatience / 2);
  ExpectConnected(meshes, 1, 0, Purpose::kControl);
}

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

// As a machine between two ranks may do it, or a rank of another version: it would have called for
// as long as it may wait, without a word.
TEST_F(MeshTest, ARankWhoseHelloIsNotTakenIsToldSoLongBeforeItsTime) {
  Listen(2);
  std::atomic<bool> done{false};
  // In rank 0's place: takes what comes, and closes it.
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
  EXPECT_LT(MonoNow() - start, 2 * kHandshakePatience);
  done = true;
  closer.join();
}

TEST_F(MeshTest, WhoWaitsForARankSaysWhatItRefused) {
  Listen(2);
  const ScopedFd stranger = Stranger(0);
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n and more, so that it is enough";
  EXPECT_GE(send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  EXPECT_THAT(Connect(0, "key", std::chrono::seconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 1"), HasSubstr("began with \"GET / HT\""))));
}

TEST_F(MeshTest, WhatRanksSayToEachOtherMayBeEncrypted) {
  Listen(2);
  encrypting_ = 2;
  const std::vector<Mesh> meshes = ConnectAll();
  ExpectConnected(meshes, 0, 1, Purpose::kMessages);
  ExpectConnected(meshes, 1, 0, Purpose::kMessages);
  // Longer than it is, and another word.
  ASSERT_EQ(meshes[0].at(Purpose::kControl)[1].Send("word"), 4);
  pollfd one = {meshes[1].at(Purpose::kControl)[0].fd(), POLLIN, 0};
  ASSERT_EQ(poll(&one, 1, 60000), 1);
  char bytes[100];
  const ssize_t crossed = recv(one.fd, bytes, sizeof(bytes), 0);
  EXPECT_EQ(crossed, wire::kRecordHeadBytes + 4 + wire::kRecordTagBytes);
  EXPECT_THAT(std::string(bytes, crossed), ::testing::Not(HasSubstr("word")));
}

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

TEST_F(MeshTest, TheWaitForTheOthersEndsWithTheirGeneration) {
  Listen(2);
  check_ = AbortedError("the generation has ended");
  EXPECT_THAT(Connect(0, "key"), StatusIs(StatusCode::kAborted));
}

}  // namespace
}  // namespace cadre::sockets
