#include "rendezvous/cluster/agents.h"

#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

MonoTime At(int seconds) { return MonoTime() + absl::Seconds(seconds); }

TEST(AgentsTest, OneThatIsHeardIsLostALeaseAfterIt) {
  Agents agents(absl::Seconds(10));
  agents.Connect("a", StreamId{1}, 1, {}, At(0));
  agents.Heard("a", At(8));
  EXPECT_EQ(agents.NextLost(At(10)), std::nullopt);
  EXPECT_EQ(agents.NextDeadline(), At(18));
  EXPECT_EQ(agents.NextLost(At(18)), "a");
  agents.Erase("a");
  EXPECT_EQ(agents.NextLost(At(18)), std::nullopt);
  EXPECT_EQ(agents.NodeOf(StreamId{1}), nullptr);
}

TEST(AgentsTest, OneThatIsGoneHasALeaseToComeBack) {
  Agents agents(absl::Seconds(10));
  agents.Connect("a", StreamId{1}, 1, {}, At(0));
  agents.Disconnect(StreamId{1}, At(5));
  EXPECT_EQ(agents.NextLost(At(14)), std::nullopt);
  agents.Connect("a", StreamId{2}, 1, {}, At(14));
  EXPECT_TRUE(agents.IsConnected("a"));
  EXPECT_EQ(agents.NextLost(At(15)), std::nullopt);
}

TEST(AgentsTest, ANewStreamTakesTheOlderOnesPlace) {
  Agents agents(absl::Seconds(10));
  agents.Connect("a", StreamId{1}, 1, {}, At(0));
  agents.Connect("a", StreamId{2}, 1, {}, At(1));
  EXPECT_EQ(agents.NodeOf(StreamId{1}), nullptr);
  ASSERT_NE(agents.NodeOf(StreamId{2}), nullptr);
  // The end of the older one, when it is reported, is nobody's.
  agents.Disconnect(StreamId{1}, At(2));
  EXPECT_TRUE(agents.IsConnected("a"));
}

TEST(AgentsTest, AfterTheServerBeganAnewAgentsAreExpectedForALease) {
  Agents agents(absl::Seconds(10));
  agents.Expect("a", At(0));
  agents.Expect("b", At(0));
  agents.Connect("a", StreamId{1}, 1, {}, At(3));
  EXPECT_TRUE(agents.AnyExpected());
  EXPECT_EQ(agents.NextLost(At(10)), "b");
  agents.Erase("b");
  EXPECT_FALSE(agents.AnyExpected());
  // One that was there is not expected, but awaited as long as its lease lasts.
  agents.Disconnect(StreamId{1}, At(11));
  EXPECT_FALSE(agents.AnyExpected());
  agents.AwaitAbsent(At(15));
  EXPECT_EQ(agents.NextLost(At(24)), std::nullopt);
  EXPECT_EQ(agents.NextLost(At(25)), "a");
}

TEST(AgentsTest, WhatRemainsIsKnownUntilItIsGone) {
  Agents agents(absl::Seconds(10));
  agents.Connect("a", StreamId{1}, 1, {}, At(0));
  agents.AddRemains("a", 7, "stays");
  EXPECT_TRUE(agents.Remains("a", 7));
  EXPECT_FALSE(agents.Remains("a", 8));
  agents.PartEnded("a", 7);
  EXPECT_TRUE(agents.remains().empty());
  agents.AddRemains("a", 8, "stays");
  agents.Erase("a");
  EXPECT_TRUE(agents.remains().empty());
}

TEST(AgentsTest, OneThatComesBackStillHasWhatRemainsOfThePartsThatItRuns) {
  Agents agents(absl::Seconds(10));
  agents.Connect("a", StreamId{1}, 1, {}, At(0));
  agents.AddRemains("a", 7, "stays");
  agents.AddRemains("a", 8, "stays");
  agents.Disconnect(StreamId{1}, At(1));
  EXPECT_TRUE(agents.Remains("a", 7));
  agents.Connect("a", StreamId{2}, 1, {8, 9}, At(2));
  EXPECT_FALSE(agents.Remains("a", 7)) << "it is gone";
  EXPECT_TRUE(agents.Remains("a", 8));
  EXPECT_FALSE(agents.Remains("a", 9));
  agents.Connect("a", StreamId{3}, 1, {}, At(3));
  EXPECT_TRUE(agents.remains().empty());
}

}  // namespace
}  // namespace cadre::cluster
