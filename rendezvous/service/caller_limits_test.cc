#include "rendezvous/service/caller_limits.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/service/bearers_for_test.h"

namespace cadre::service {
namespace {

using ::testing::ElementsAre;

TEST(CallerLoadsTest, OneUsersCallsLeaveOthersTheirOwn) {
  CallerLimits limits;
  limits.calls = 2;
  CallerLoads loads(limits, nullptr);
  EXPECT_OK(loads.BeginCall(User("ann")));
  EXPECT_OK(loads.BeginCall(User("ann")));
  EXPECT_EQ(loads.BeginCall(User("ann")).message(),
            "user ann: 2 calls are under way, which is the limit (calls of a user); wait for the "
            "answers of some");
  EXPECT_OK(loads.BeginCall(User("bob")));
  for (int i = 0; i < 10; ++i) EXPECT_OK(loads.BeginCall(Bearer()));
  loads.EndCall(User("ann"));
  EXPECT_OK(loads.BeginCall(User("ann")));
}

TEST(CallerLoadsTest, WhatAUserDoesNotReadIsBounded) {
  CallerLimits limits;
  limits.unread_bytes = 100 << 10;
  CallerLoads loads(limits, nullptr);
  EXPECT_OK(loads.AddUnread(User("ann"), 200 << 10)) << "a list may be longer than the limit";
  EXPECT_EQ(loads.AddUnread(User("ann"), 1 << 10).message(),
            "user ann: 200 KiB of answers have not been read, and this one has 1 KiB; the limit "
            "(unread answers of a user) is 100 KiB: read those first");
  EXPECT_OK(loads.AddUnread(User("bob"), 1));
  loads.RemoveUnread(User("ann"), 200 << 10);
  EXPECT_OK(loads.AddUnread(User("ann"), 60 << 10));
  EXPECT_OK(loads.AddUnread(User("ann"), 40 << 10));
  EXPECT_FALSE(loads.AddUnread(User("ann"), 1).ok());
}

TEST(CallerLoadsTest, TheLogSaysOnceWhatWasClosed) {
  std::vector<std::string> lines;
  CallerLoads loads({}, [&](const std::string& line) { lines.push_back(line); });
  Bearer reader;
  reader.kind = Bearer::Kind::kReader;
  loads.LogClosed(reader, "an answer");
  loads.LogClosed(reader, "an answer");
  EXPECT_THAT(lines, ElementsAre("closed an answer of the read-only tokens, which was not read"));
}

MonoTime At(double seconds) { return MonoTime() + absl::Seconds(seconds); }

AdmissionLimits Limits() {
  AdmissionLimits limits;
  limits.connection = 10;
  limits.burst = 100;
  limits.per_second = 20;
  limits.in_all = 150;
  return limits;
}

TEST(AdmissionBudget, OneSourcesAddresses) {
  EXPECT_EQ(SourceOf("127.0.0.1"), SourceOf("127.9.8.7"));
  EXPECT_EQ(SourceOf("127.0.0.1"), SourceOf("::1"));
  EXPECT_NE(SourceOf("10.0.0.1"), SourceOf("10.0.0.2"));
  EXPECT_EQ(SourceOf("fd00::1"), SourceOf("fd00::2:0:0:7"));
  EXPECT_NE(SourceOf("fd00::1"), SourceOf("fd00:0:0:1::1"));
}

TEST(AdmissionBudget, ConnectionsWithoutATokenUseItUp_AndTimeBringsItBack) {
  AdmissionBudget budget(Limits());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(budget.Begin("a", At(0)));
  EXPECT_FALSE(budget.Begin("a", At(0)));
  EXPECT_TRUE(budget.Begin("b", At(0))) << "another source has its own";
  for (int i = 0; i < 10; ++i) budget.End("a", 10, /*admitted=*/false, At(0));
  EXPECT_FALSE(budget.Begin("a", At(0.4))) << "that they are gone gives nothing back";
  EXPECT_TRUE(budget.Begin("a", At(0.5)));
}

TEST(AdmissionBudget, AConnectionThatShowsATokenCostsNothing) {
  AdmissionBudget budget(Limits());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(budget.Begin("a", At(0)));
    ASSERT_TRUE(budget.Spend("a", 50, At(0)));
    budget.End("a", 60, /*admitted=*/true, At(0));
  }
}

TEST(AdmissionBudget, AConnectionThatGoesOnWithoutATokenIsClosed_AndLeavesAQuarterToOthers) {
  AdmissionBudget budget(Limits());
  ASSERT_TRUE(budget.Begin("a", At(0)));
  EXPECT_TRUE(budget.Spend("a", 65, At(0)));
  EXPECT_FALSE(budget.Spend("a", 1, At(0)));
  EXPECT_TRUE(budget.Begin("a", At(0)));
  EXPECT_TRUE(budget.Begin("a", At(0)));
  EXPECT_FALSE(budget.Begin("a", At(0)));
}

TEST(AdmissionBudget, AllSourcesTogetherHoldNoMoreThanTheServerHasMemoryFor) {
  AdmissionBudget budget(Limits());
  ASSERT_TRUE(budget.Begin("a", At(0)));
  ASSERT_TRUE(budget.Spend("a", 60, At(0)));
  ASSERT_TRUE(budget.Begin("b", At(0)));
  ASSERT_TRUE(budget.Spend("b", 65, At(0)));
  EXPECT_FALSE(budget.Begin("a", At(9))) << "it has its own budget again, and holds 70 of all";
  EXPECT_TRUE(budget.Begin("c", At(9))) << "it holds nothing";
  EXPECT_TRUE(budget.Spend("c", 60, At(9))) << "as much as a large first message";
  EXPECT_FALSE(budget.Spend("b", 40, At(9)));
  budget.End("a", 70, /*admitted=*/false, At(9));
}

TEST(AdmissionBudget, SourcesThatAreQuietAreForgotten) {
  AdmissionBudget budget(Limits());
  for (int i = 0; i < 10'000; ++i) {
    const MonoTime now = At(i);
    const std::string source = absl::StrCat("source ", i);
    ASSERT_TRUE(budget.Begin(source, now));
    budget.End(source, 10, /*admitted=*/false, now);
  }
  EXPECT_LE(budget.sources(), 2048u);
}

}  // namespace

}  // namespace cadre::service
