#include "worker_runtime/sockets/peer_links.h"

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>

#include "absl/synchronization/barrier.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::sockets {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

// Ranks as threads.
class PeerLinksTest : public ::testing::Test {
 protected:
  void Run(int size, const std::function<void(int rank, PeerLinks& links)>& body) {
    std::vector<std::vector<wire::Connection>> connections(size);
    for (auto& own : connections) own.resize(size);
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < rank; ++peer) {
        std::tie(connections[rank][peer], connections[peer][rank]) = wire::ConnectedPair();
      }
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        PeerLinks links(std::move(connections[rank]));
        body(rank, links);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

PeerMessage Saying(const char* text) {
  PeerMessage message;
  strncpy(message.text, text, sizeof(message.text) - 1);
  return message;
}

TEST_F(PeerLinksTest, EveryoneHearsEveryone_AndThatTheyWent) {
  constexpr int kRanks = 4;
  Run(kRanks, [](int rank, PeerLinks& links) {
    for (int peer = 0; peer < kRanks; ++peer) {
      links.Send(peer, Saying(std::to_string(rank).c_str()), /*is_last=*/true);
    }
    if (rank == 3) return;  // goes at once; what it said is heard all the same
    std::map<int, std::string> heard;
    bool has_ended = false;
    const PeerLinks::Listener listener = {
        [&](int peer, const PeerMessage& message) { heard[peer] = message.text; },
        [&](int peer, LinkEnd) { has_ended = has_ended || peer == 3; }};
    const MonoTime deadline = MonoNow() + kLong;
    while ((heard.size() < kRanks - 1 || !has_ended) && MonoNow() < deadline) {
      links.Poll(absl::Seconds(1), listener);
    }
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) {
        EXPECT_EQ(heard[peer], std::to_string(peer));
      }
    }
    EXPECT_TRUE(has_ended);
  });
}

TEST_F(PeerLinksTest, NeverWaitsForWhoDoesNotListen_ButKeepsTheLastWord) {
  absl::Barrier* const over = new absl::Barrier(2);
  Run(2, [over](int rank, PeerLinks& links) {
    if (rank == 0) {
      // More than any socket holds.
      for (int i = 0; i < 100000; ++i) links.Send(1, Saying("again"));
      links.Send(1, Saying("the end"), /*is_last=*/true);
      if (over->Block()) delete over;
      // What is left goes as soon as there is room.
      bool has_ended = false;
      const PeerLinks::Listener until_end = {[](int, const PeerMessage&) {},
                                             [&](int, LinkEnd) { has_ended = true; }};
      while (!has_ended) links.Poll(absl::Seconds(1), until_end);
      return;
    }
    if (over->Block()) delete over;
    std::string last;
    const PeerLinks::Listener listener = {
        [&](int, const PeerMessage& message) { last = message.text; }, [](int, LinkEnd) {}};
    const MonoTime deadline = MonoNow() + kLong;
    while (last != "the end" && MonoNow() < deadline) links.Poll(absl::Seconds(1), listener);
    EXPECT_EQ(last, "the end");
  });
}

TEST_F(PeerLinksTest, WakeEndsAWait) {
  Run(2, [](int, PeerLinks& links) {
    std::thread waker([&links] { links.Wake(); });
    links.Poll(absl::InfiniteDuration(), {[](int, const PeerMessage&) {}, [](int, LinkEnd) {}});
    waker.join();
  });
}

}  // namespace
}  // namespace cadre::sockets
