#include "worker_runtime/gloo/peer_links.h"

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/synchronization/barrier.h"
#include "base/clock.h"
#include "base/status_matchers.h"

namespace cadre::gloo {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

// Ranks as threads, with an all-gather through memory.
class PeerLinksTest : public ::testing::Test {
 protected:
  void Run(int size, const std::function<void(int rank, PeerLinks& links)>& body) {
    std::vector<std::string> given(size);
    absl::Barrier* const met = new absl::Barrier(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto all_gather = [&](void* own, void* all, size_t bytes) -> absl::Status {
          given[rank].assign(static_cast<const char*>(own), bytes);
          if (met->Block()) delete met;
          for (int peer = 0; peer < size; ++peer) {
            memcpy(static_cast<char*>(all) + peer * bytes, given[peer].data(), bytes);
          }
          return absl::OkStatus();
        };
        auto links = PeerLinks::Connect(rank, size, "127.0.0.1", all_gather, MonoNow() + kLong);
        ASSERT_OK(links);
        body(rank, **links);
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
        [&](int peer) { has_ended = has_ended || peer == 3; }};
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
                                             [&](int) { has_ended = true; }};
      while (!has_ended) links.Poll(absl::Seconds(1), until_end);
      return;
    }
    if (over->Block()) delete over;
    std::string last;
    const PeerLinks::Listener listener = {
        [&](int, const PeerMessage& message) { last = message.text; }, [](int) {}};
    const MonoTime deadline = MonoNow() + kLong;
    while (last != "the end" && MonoNow() < deadline) links.Poll(absl::Seconds(1), listener);
    EXPECT_EQ(last, "the end");
  });
}

TEST_F(PeerLinksTest, WakeEndsAWait) {
  Run(2, [](int, PeerLinks& links) {
    std::thread waker([&links] { links.Wake(); });
    links.Poll(absl::InfiniteDuration(), {[](int, const PeerMessage&) {}, [](int) {}});
    waker.join();
  });
}

TEST(PeerLinks, SaysThatNobodyCame) {
  const auto alone = [](void* own, void* all, size_t bytes) {
    memcpy(all, own, bytes);
    return absl::OkStatus();
  };
  EXPECT_THAT(PeerLinks::Connect(0, 2, "127.0.0.1", alone, MonoNow() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace cadre::gloo
