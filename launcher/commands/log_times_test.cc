#include "launcher/commands/log_times.h"

#include <fstream>

#include "base/status_matchers.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

std::vector<LogTime> TimesOf(const std::string& text) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/stdout.times") << text;
  return ReadLogTimes(folder + "/stdout.log");
}

TEST(LogTimesTest, WhatIsWantedBeginsWithTheSecondInWhichItWas) {
  const std::vector<LogTime> times = TimesOf("10000 0\n11000 50\n60000 70\n");
  const auto since = [&](int64_t ms) { return OffsetSince(times, absl::FromUnixMillis(ms), 100); };
  EXPECT_EQ(since(0), 0u);
  EXPECT_EQ(since(11500), 50u);
  // What was written in the second from 11.0 on is over, and nothing more came for a while.
  EXPECT_EQ(since(12500), 70u);
  EXPECT_EQ(since(61500), 100u);
}

TEST(LogTimesTest, AClockThatWasSetBackAndALineThatWasCutOffDoNoHarm) {
  const std::vector<LogTime> times = TimesOf("10000 0\n5000 50\n12000 70\n130");
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[1].unix_ms, 10000);
  EXPECT_EQ(times[2].unix_ms, 12000);
  EXPECT_TRUE(ReadLogTimes("/nonexistent/stdout.log").empty());
}

TEST(ParseSinceTest, AgoATimeOfDayAndADate) {
  const absl::TimeZone zone = absl::FixedTimeZone(3600);
  const absl::Time now = absl::FromCivil(absl::CivilSecond(2026, 11, 29, 12, 0, 0), zone);
  const auto said = [&](absl::string_view text) -> std::string {
    const auto time = ParseSince(text, now, zone);
    if (!time.ok()) return std::string(time.status().message());
    return absl::FormatTime("%Y-%m-%d %H:%M:%E*S", *time, zone);
  };
  EXPECT_EQ(said("5m"), "2026-11-29 11:55:00");
  EXPECT_EQ(said("11:30"), "2026-11-29 11:30:00");
  EXPECT_EQ(said("12:30"), "2026-11-28 12:30:00") << "yesterday's";
  EXPECT_EQ(said("11:30:15.5"), "2026-11-29 11:30:15.5");
  EXPECT_EQ(said("2026-11-27"), "2026-11-27 00:00:00");
  EXPECT_EQ(said("2026-11-27 10:00"), "2026-11-27 10:00:00");
  EXPECT_EQ(said("2026-11-27T10:00:01"), "2026-11-27 10:00:01");
  EXPECT_EQ(said("2026-11-27T10:00:01Z"), "2026-11-27 11:00:01");
  EXPECT_EQ(said("2026-11-27T10:00:01+02:00"), "2026-11-27 09:00:01");
  for (const char* bad : {"", "yesterday", "25:00", "5 minutes"}) {
    EXPECT_THAT(said(bad), HasSubstr("expected how long ago, as 5m")) << bad;
  }
}

}  // namespace
}  // namespace cadre::launcher
