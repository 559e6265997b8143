#include "worker_runtime/sockets/call_watch.h"

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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CallLedger, SameCallsAreFineInWhateverOrderTheyAreTold) {
  CallLedger ledger(0, 3);
  ASSERT_OK(ledger.Begin("barrier"));
  ASSERT_OK(ledger.OnMessage(1, {1, 0, "barrier"}));
  ASSERT_OK(ledger.OnMessage(2, {2, 1, "broadcast"}));
  ledger.End();
  ASSERT_OK(ledger.Begin("broadcast"));
  ASSERT_OK(ledger.OnMessage(1, {1, 0, "barrier"}));
}

TEST(CallLedger, NamesBothSidesOfADifference) {
  CallLedger ledger(0, 3);
  ASSERT_OK(ledger.Begin("all-reduce (sum) of 4 float32"));
  EXPECT_THAT(
      ledger.OnMessage(2, {1, 0, "barrier"}),
      StatusIs(StatusCode::kInvalidArgument,
               HasSubstr("collective 1: rank 0 an all-reduce (sum) of 4 float32, rank 2 a barri")));
}

TEST(CallLedger, ADifferenceIsFoundByTheRankThatComesLaterAndByTheOneThatWentOn) {
  CallLedger late(0, 2);
  ASSERT_OK(late.OnMessage(1, {1, 0, "barrier"}));
  EXPECT_THAT(late.Begin("broadcast"), StatusIs(StatusCode::kInvalidArgument));
  CallLedger ahead(0, 2);
  ASSERT_OK(ahead.Begin("all-reduce of 0"));
  ahead.End();
  ASSERT_OK(ahead.Begin("barrier"));
  EXPECT_THAT(ahead.OnMessage(1, {1, 0, "all-reduce of 9"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("as collective 1")));
}

TEST(CallLedger, LongCallsThatDifferAtTheirEndAreDifferent) {
  const std::string call(1000, '+');
  CallLedger ledger(0, 2), other(1, 2);
  ASSERT_OK(ledger.Begin(call + "1"));
  ASSERT_OK(other.Begin(call + "2"));
  EXPECT_LE(other.own().text.size(), kMaxCallText);
  EXPECT_THAT(ledger.OnMessage(1, other.own()), StatusIs(StatusCode::kInvalidArgument));
}

TEST(CallLedger, WhatWasForgottenIsNotCompared) {
  CallLedger ledger(0, 2);
  for (size_t i = 0; i <= kRememberedCalls; ++i) {
    ASSERT_OK(ledger.Begin("barrier"));
    ledger.End();
  }
  EXPECT_OK(ledger.OnMessage(1, {1, 0, "broadcast"}));
}

TEST(CallLedger, WhoLeavesIsMissedFromTheCallOnThatItHasNotDone) {
  CallLedger ledger(0, 2);
  ASSERT_OK(ledger.Begin("barrier"));
  EXPECT_OK(ledger.OnLeave(1, 1)) << "it has done its part";
  ledger.End();
  EXPECT_THAT(ledger.Begin("barrier"),
              StatusIs(StatusCode::kAborted, HasSubstr("rank 1 has left the communicator")));
  CallLedger waits(0, 2);
  ASSERT_OK(waits.Begin("barrier"));
  EXPECT_THAT(waits.OnLeave(1, 0), StatusIs(StatusCode::kAborted));
}

TEST(CallLedger, ALossIsExplainedByWhatWasToldFirstOfAll) {
  CallLedger ledger(0, 4);
  ASSERT_OK(ledger.Begin("barrier"));
  EXPECT_OK(ledger.ExplainLoss({2}));
  ledger.OnConnectionEnd(1);
  EXPECT_THAT(ledger.ExplainLoss({2}), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1")));
  ledger.OnConnectionEnd(2);
  EXPECT_THAT(ledger.ExplainLoss({2}), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 2")));
  EXPECT_FALSE(ledger.OnFailure(3, DataLossError("rank 0 lost it")).ok());
  EXPECT_FALSE(ledger.OnFailure(1, InternalError("later")).ok());
  EXPECT_THAT(ledger.ExplainLoss({2}), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(ledger.Begin("barrier"), StatusIs(StatusCode::kDataLoss));
}

TEST(CallLedger, AMessageIsLostByTheOtherEndAloneAndNotByAThirdRanksDeath) {
  CallLedger ledger(2, 4);
  ledger.OnConnectionEnd(3);
  EXPECT_OK(ledger.ExplainMessageLoss(0));
  EXPECT_OK(ledger.OnLeave(0, 0));
  EXPECT_THAT(ledger.ExplainMessageLoss(0), StatusIs(StatusCode::kAborted, HasSubstr("rank 0")));
  EXPECT_THAT(ledger.ExplainMessageLoss(3),
              StatusIs(StatusCode::kUnavailable, HasSubstr("rank 3")));
  EXPECT_FALSE(ledger.OnFailure(1, DataLossError("rank 1 lost it")).ok());
  EXPECT_THAT(ledger.ExplainMessageLoss(0), StatusIs(StatusCode::kDataLoss));
}

TEST(CallLedger, SaysWhoIsMissing) {
  CallLedger ledger(0, 4);
  ASSERT_OK(ledger.Begin("barrier"));
  ASSERT_OK(ledger.OnMessage(1, {1, 0, "barrier"}));
  ASSERT_OK(ledger.OnMessage(2, {0, 0, ""}));
  ASSERT_OK(ledger.OnMessage(3, {1, 0, "barrier"}));
  EXPECT_TRUE(ledger.HaveAllAnswered());
  EXPECT_THAT(ledger.Missing(), AllOf(HasSubstr("rank 2 (it has not started"),
                                      Not(HasSubstr("rank 1")), Not(HasSubstr("rank 3"))));
  ledger.ForgetAnswers();
  ASSERT_OK(ledger.OnMessage(1, {1, 0, "barrier"}));
  ASSERT_OK(ledger.OnMessage(2, {0, 0, ""}));
  EXPECT_FALSE(ledger.HaveAllAnswered());
  EXPECT_THAT(ledger.Missing(), AllOf(HasSubstr("rank 3 (it does not answer"),
                                      Not(HasSubstr("rank 1")), Not(HasSubstr("rank 2"))));
  ledger.OnConnectionEnd(3);
  EXPECT_TRUE(ledger.HaveAllAnswered()) << "nobody waits for an answer of who is gone";
  EXPECT_THAT(ledger.Missing(), HasSubstr("rank 3 (it is gone)"));
}

// Fault (collective): With `--encrypt`, the data that a rank sends are altered on their way -> The
// rank that notices reports that, and from which rank, whatever the sender reports
TEST(CallLedger, WhatWasAlteredOnItsWayIsCalledThatWhateverOthersSayOfIt) {
  CallLedger ledger(0, 3);
  ASSERT_OK(ledger.Begin("barrier"));
  ledger.OnConnectionEnd(1, /*altered=*/true);
  const auto altered = StatusIs(StatusCode::kUnavailable,
                                HasSubstr("rank 1: the received data were altered on their way"));
  EXPECT_THAT(ledger.ExplainLoss({1}), altered);
  EXPECT_THAT(ledger.ExplainLoss({2}), altered);
  EXPECT_THAT(ledger.Missing(), HasSubstr("rank 1 (the received data were altered on their way)"));
  // The sender of the altered data blames this rank, because it lost the connection.
  EXPECT_FALSE(ledger.OnFailure(1, UnavailableError("rank 0 is gone")).ok());
  EXPECT_THAT(ledger.ExplainLoss({1}), altered);
  EXPECT_THAT(ledger.ExplainMessageLoss(1), altered);
}

TEST(CallLedger, WhoLeftBeforeItsConnectionEndedHasNotDied) {
  CallLedger ledger(0, 3);
  EXPECT_OK(ledger.OnLeave(1, 0));
  ledger.OnConnectionEnd(1);
  EXPECT_FALSE(ledger.has_any_died());
  ledger.OnConnectionEnd(2);
  EXPECT_TRUE(ledger.has_any_died());
}

constexpr absl::Duration kLong = absl::Minutes(1);

// Runs ranks as threads.
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
    if (rank == 3) return;  // ends at once; its messages arrive all the same
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
      // These are more messages than any socket buffer holds.
      for (int i = 0; i < 100000; ++i) links.Send(1, Saying("again"));
      links.Send(1, Saying("the end"), /*is_last=*/true);
      if (over->Block()) delete over;
      // The remaining bytes are sent as soon as there is room.
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
