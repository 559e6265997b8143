#include "rendezvous/service/caller_loads.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::service {
namespace {

using ::testing::ElementsAre;

Bearer User(const std::string& name) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kUser;
  bearer.user = name;
  return bearer;
}

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
  loads.SayClosed(reader, "an answer");
  loads.SayClosed(reader, "an answer");
  EXPECT_THAT(lines, ElementsAre("closed an answer of the read-only tokens, which was not read"));
}

}  // namespace
}  // namespace cadre::service
