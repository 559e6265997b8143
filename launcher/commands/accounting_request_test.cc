#include "launcher/commands/accounting_request.h"

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

absl::Time Now() {
  return absl::FromCivil(absl::CivilSecond(2026, 11, 30, 12, 0, 0), absl::UTCTimeZone());
}

absl::StatusOr<v1::HistoryRequest> History(const Parsed& parsed) {
  return ReadHistory(parsed, Now(), absl::UTCTimeZone(),
                     [] { return absl::StatusOr<std::string>("alice"); });
}

Parsed With(const std::string& flag, const std::string& value) {
  Parsed parsed;
  parsed.flags[flag] = {value};
  return parsed;
}

TEST(ReadHistory, AsksForTheLastJobsOfAll) {
  const auto request = History(Parsed());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->limit(), static_cast<uint32_t>(kHistoryShown));
  EXPECT_EQ(request->since_unix_ms(), 0);
  EXPECT_FALSE(request->steps());
}

TEST(ReadHistory, TakesIdsOfJobsElementsAndSteps) {
  Parsed parsed;
  parsed.rest = {"57", "58_3", "59.2"};
  const auto request = History(parsed);
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(request->ids(), ElementsAre(57, 58, 59));
  EXPECT_TRUE(request->steps());
  EXPECT_EQ(request->limit(), 0u);
  parsed.rest = {"57", "train"};
  EXPECT_THAT(History(parsed), StatusIs(kInvalid, HasSubstr("either ids of jobs or names")));
  parsed.rest = {"0"};
  EXPECT_THAT(History(parsed), StatusIs(kInvalid, HasSubstr("expected the id of a job")));
}

TEST(ReadHistory, TakesUsersStatesNamesAndTimes) {
  Parsed parsed = With("since", "2026-11-29");
  parsed.flags["me"] = {"1"};
  parsed.flags["state"] = {"failed"};
  parsed.flags["name"] = {"a,b"};
  parsed.flags["limit"] = {"7"};
  const auto request = History(parsed);
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(request->users(), ElementsAre("alice"));
  EXPECT_THAT(request->phases(), ElementsAre(v1::FAILED));
  EXPECT_THAT(request->names(), ElementsAre("a", "b"));
  EXPECT_EQ(request->limit(), 7u);
  EXPECT_EQ(absl::FromUnixMillis(request->since_unix_ms()), Now() - absl::Hours(36));
}

TEST(ReadHistory, RefusesWhatIsWrong) {
  EXPECT_THAT(History(With("since", "soon")), StatusIs(kInvalid, HasSubstr("--since: expected")));
  EXPECT_THAT(History(With("limit", "0")), StatusIs(kInvalid, HasSubstr("--limit: expected")));
  EXPECT_THAT(History(With("state", "x")), StatusIs(kInvalid, HasSubstr("is no state")));
}

TEST(ReadUsage, BeginsWithTheMonthUnlessItIsToldOtherwise) {
  const auto request = ReadUsage(Parsed(), Now(), absl::UTCTimeZone());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->by(), v1::UsageRequest::USER);
  EXPECT_EQ(absl::FormatTime("%Y-%m-%dT%H:%M:%S", absl::FromUnixMillis(request->since_unix_ms()),
                             absl::UTCTimeZone()),
            "2026-11-01T00:00:00");
  EXPECT_EQ(ReadUsage(With("by", "cause"), Now(), absl::UTCTimeZone())->by(),
            v1::UsageRequest::CAUSE);
  EXPECT_THAT(ReadUsage(With("by", "month"), Now(), absl::UTCTimeZone()),
              StatusIs(kInvalid, HasSubstr("--by: expected user, node, cause or day")));
}

TEST(KeepNamed, KeepsTheElementsAndStepsThatAreNamed) {
  v1::HistoryReply history;
  history.add_jobs()->set_id(57);
  for (const uint32_t index : {2u, 3u}) {
    v1::AccountedJob* element = history.add_jobs();
    element->set_id(60 + index);
    element->set_array(58);
    element->set_array_index(index);
  }
  v1::AccountedJob* step = history.add_jobs();
  step->set_id(70);
  step->set_step_of(59);
  step->set_step(2);
  KeepNamed({"58_3", "59.2"}, &history);
  ASSERT_THAT(history.jobs(), SizeIs(2));
  EXPECT_EQ(history.jobs(0).id(), 63u);
  EXPECT_EQ(history.jobs(1).id(), 70u);
  KeepNamed({"train"}, &history);
  EXPECT_THAT(history.jobs(), SizeIs(2));
}

}  // namespace
}  // namespace cadre::launcher
