#include "rendezvous/cluster/agents.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

MonoTime At(int seconds) { return MonoTime() + absl::Seconds(seconds); }

class AgentsTest : public testing::Test {
 protected:
  // Who is lost then, with a host that is never late.
  std::optional<std::string> LostAt(int seconds) {
    for (; at_ <= At(seconds); at_ = at_ + absl::Milliseconds(100)) clock_.Advance(at_, at_, true);
    return agents_.NextLost(clock_);
  }
  void SetCanSave(int seconds, bool can) {
    EXPECT_EQ(LostAt(seconds), std::nullopt);
    clock_.SetCanSave(can);
  }

  Agents agents_{absl::Seconds(10)};

 private:
  step::LeaseClock clock_{absl::Seconds(10), absl::Milliseconds(100)};
  MonoTime at_;
};

TEST_F(AgentsTest, OneThatIsHeardIsLostALeaseAfterIt) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Heard("a", At(8));
  EXPECT_EQ(LostAt(10), std::nullopt);
  EXPECT_EQ(agents_.NextDeadline(), At(18));
  EXPECT_EQ(LostAt(18), "a");
  agents_.Erase("a");
  EXPECT_EQ(LostAt(18), std::nullopt);
  EXPECT_EQ(agents_.NodeOf(StreamId{1}), nullptr);
}

TEST_F(AgentsTest, OneThatIsGoneHasALeaseToComeBack) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Disconnect(StreamId{1}, At(5));
  EXPECT_EQ(LostAt(14), std::nullopt);
  agents_.Connect("a", StreamId{2}, 1, {}, At(14));
  EXPECT_TRUE(agents_.IsConnected("a"));
  EXPECT_EQ(LostAt(15), std::nullopt);
}

TEST_F(AgentsTest, ANewStreamTakesTheOlderOnesPlace) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Connect("a", StreamId{2}, 1, {}, At(1));
  EXPECT_EQ(agents_.NodeOf(StreamId{1}), nullptr);
  ASSERT_NE(agents_.NodeOf(StreamId{2}), nullptr);
  // The end of the older one, when it is reported, is nobody's.
  agents_.Disconnect(StreamId{1}, At(2));
  EXPECT_TRUE(agents_.IsConnected("a"));
}

TEST_F(AgentsTest, AfterTheServerBeganAnewAgentsAreExpectedForALease) {
  agents_.Expect("a", At(0));
  agents_.Expect("b", At(0));
  agents_.Connect("a", StreamId{1}, 1, {}, At(3));
  EXPECT_TRUE(agents_.AnyExpected());
  EXPECT_EQ(LostAt(10), "b");
  agents_.Erase("b");
  EXPECT_FALSE(agents_.AnyExpected());
  // One that was there is not expected, but awaited as long as its lease lasts.
  agents_.Disconnect(StreamId{1}, At(11));
  EXPECT_FALSE(agents_.AnyExpected());
  agents_.AwaitAbsent(At(15));
  EXPECT_EQ(LostAt(24), std::nullopt);
  EXPECT_EQ(LostAt(25), "a");
}

// It could not come back, and what it says would not be heard.
TEST_F(AgentsTest, OneThatIsGoneIsNotLostBeforeTheServerCanSave) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Connect("b", StreamId{2}, 1, {}, At(0));
  agents_.Disconnect(StreamId{1}, At(1));
  SetCanSave(5, false);
  agents_.Heard("b", At(15));
  EXPECT_EQ(LostAt(20), std::nullopt);
  EXPECT_EQ(LostAt(25), "b") << "it is connected, and silent";
  agents_.Erase("b");
  SetCanSave(60, true);
  agents_.AwaitAbsent(At(60));
  EXPECT_EQ(LostAt(69), std::nullopt);
  EXPECT_EQ(LostAt(70), "a");
}

TEST_F(AgentsTest, WhatRemainsIsKnownUntilItIsGone) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.AddRemains("a", 7, "stays");
  EXPECT_TRUE(agents_.Remains("a", 7));
  EXPECT_FALSE(agents_.Remains("a", 8));
  agents_.PartEnded("a", 7);
  EXPECT_TRUE(agents_.remains().empty());
  agents_.AddRemains("a", 8, "stays");
  agents_.Erase("a");
  EXPECT_TRUE(agents_.remains().empty());
}

TEST_F(AgentsTest, OneThatComesBackStillHasWhatRemainsOfThePartsThatItRuns) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.AddRemains("a", 7, "stays");
  agents_.AddRemains("a", 8, "stays");
  agents_.Disconnect(StreamId{1}, At(1));
  EXPECT_TRUE(agents_.Remains("a", 7));
  agents_.Connect("a", StreamId{2}, 1, {8, 9}, At(2));
  EXPECT_FALSE(agents_.Remains("a", 7)) << "it is gone";
  EXPECT_TRUE(agents_.Remains("a", 8));
  EXPECT_FALSE(agents_.Remains("a", 9));
  agents_.Connect("a", StreamId{3}, 1, {}, At(3));
  EXPECT_TRUE(agents_.remains().empty());
}

}  // namespace
}  // namespace cadre::cluster
