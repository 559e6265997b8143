#include "launcher/spec/queue_values.h"

#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// 2026-11-29 12:00:00 UTC.
absl::Time Now() { return absl::FromUnixSeconds(1795953600); }

std::string ToCome(absl::string_view text) {
  const auto time = ParseTimeToCome(text, Now(), absl::UTCTimeZone());
  return time.ok() ? absl::FormatTime("%Y-%m-%dT%H:%M:%S", *time, absl::UTCTimeZone())
                   : std::string(time.status().message());
}

TEST(QueueValuesTest, TimesToCome) {
  EXPECT_EQ(ToCome("2026-12-01T08:00"), "2026-12-01T08:00:00");
  EXPECT_EQ(ToCome("now+1hour"), "2026-11-29T13:00:00");
  EXPECT_EQ(ToCome("now+90"), "2026-11-29T12:01:30");
  EXPECT_EQ(ToCome("now+2days"), "2026-12-01T12:00:00");
  EXPECT_EQ(ToCome("tomorrow"), "2026-11-30T00:00:00");
  // Today if it is still to come, otherwise tomorrow.
  EXPECT_EQ(ToCome("16:30"), "2026-11-29T16:30:00");
  EXPECT_EQ(ToCome("11:30:15"), "2026-11-30T11:30:15");
  EXPECT_EQ(ToCome("4:30pm"), "2026-11-29T16:30:00");
  EXPECT_EQ(ToCome("8 AM"), "2026-11-30T08:00:00");
  EXPECT_EQ(ToCome("12am"), "2026-11-30T00:00:00");
  EXPECT_EQ(ToCome("noon"), "2026-11-30T12:00:00");
  EXPECT_EQ(ToCome("teatime"), "2026-11-29T16:00:00");
  EXPECT_EQ(ToCome("midnight"), "2026-11-30T00:00:00");
  for (const char* const wrong : {"", "soon", "25:00", "12:60", "13pm", "now+1x", "1:2:3:4"}) {
    EXPECT_THAT(ToCome(wrong), HasSubstr("expected a time, as 2026-12-01T08:00")) << wrong;
  }
}

std::string Dependencies(absl::string_view text) {
  v1::QueueOptions options;
  const absl::Status read = ParseDependencies(text, &options);
  return read.ok() ? DependenciesText(options) : std::string(read.message());
}

TEST(QueueValuesTest, DependenciesAndTheirText) {
  EXPECT_EQ(Dependencies("afterok:12"), "afterok:12");
  EXPECT_EQ(Dependencies("afterok:12:13,afterany:14"), "afterok:12,afterok:13,afterany:14");
  EXPECT_EQ(Dependencies("afternotok:12?aftercorr:13"), "afternotok:12?aftercorr:13");
  EXPECT_EQ(Dependencies("after:12+5:13"), "after:12+5,after:13");
  EXPECT_EQ(Dependencies("Singleton"), "singleton");
  EXPECT_EQ(Dependencies("afterany:12_*"), "afterany:12");
  EXPECT_EQ(DependenciesText({}), "");
}

TEST(QueueValuesTest, Indices) {
  EXPECT_EQ(IndicesText({}), "");
  EXPECT_EQ(IndicesText({3}), "3");
  EXPECT_EQ(IndicesText({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

// Fault (input): A job is to wait for what is no job -> It is refused with a line that says how
// dependencies are written
TEST(QueueValuesTest, WrongDependencies) {
  const struct {
    const char* text;
    const char* says;
  } kCases[] = {
      {"", "expected after:JOB[+MINUTES], afterany:JOB"},
      {"afterok", "expected after:JOB[+MINUTES]"},
      {"sometimes:12", "expected after:JOB[+MINUTES]"},
      {"afterok:", "expected the id of a job"},
      {"afterok:0", "expected the id of a job"},
      {"afterok:train", "expected the id of a job"},
      {"afterok:12_3", "squeue -o %A"},
      {"afterok:12+5", "expected no minutes"},
      {"after:12+x", "expected a number of minutes"},
      {"afterok:12,afterok:13?afterok:14", "expected either ','"},
      {"afterok:12,", "expected after:JOB"},
  };
  for (const auto& c : kCases) EXPECT_THAT(Dependencies(c.text), HasSubstr(c.says)) << c.text;
  EXPECT_THAT(ParseDependency("afterok:x"), StatusIs(kInvalid));
}

}  // namespace
}  // namespace cadre::launcher
