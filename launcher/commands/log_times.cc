#include "launcher/commands/log_times.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/civil_time.h"
#include "base/log_paths.h"
#include "launcher/spec/scalars.h"
#include "launcher/spec/text_file.h"

namespace cadre::launcher {
namespace {

// Of many months.
constexpr size_t kMaxTimesBytes = size_t{1} << 30;

}  // namespace

std::vector<LogTime> ReadLogTimes(const std::string& log_path) {
  std::vector<LogTime> times;
  const absl::StatusOr<std::string> text = ReadTextFile(LogTimesPath(log_path), kMaxTimesBytes);
  if (!text.ok()) return times;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, ' ');
    LogTime time;
    if (!absl::SimpleAtoi(words.first, &time.unix_ms) ||
        !absl::SimpleAtoi(words.second, &time.offset)) {
      continue;  // cut off, on a full disk
    }
    if (!times.empty()) {
      if (time.offset <= times.back().offset) continue;
      // A clock was set back.
      time.unix_ms = std::max(time.unix_ms, times.back().unix_ms);
    }
    times.push_back(time);
  }
  return times;
}

uint64_t OffsetSince(const std::vector<LogTime>& times, absl::Time since, uint64_t end) {
  for (const LogTime& time : times) {
    if (time.unix_ms + kLogTimeStepMs > absl::ToUnixMillis(since))
      return std::min(end, time.offset);
  }
  return end;
}

absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now, absl::TimeZone zone) {
  const absl::StatusOr<absl::Duration> ago = ParseDuration(text);
  if (ago.ok()) return now - *ago;
  absl::Time time;
  std::string ignored;
  const absl::CivilDay today = absl::ToCivilDay(now, zone);
  for (const char* const form : {"%H:%M", "%H:%M:%E*S"}) {
    const auto on = [&](absl::CivilDay day) {
      const std::string whole = absl::StrCat(absl::FormatCivilTime(day), " ", text);
      return absl::ParseTime(absl::StrCat("%Y-%m-%d ", form), whole, zone, &time, &ignored);
    };
    if (on(today) && (time <= now || on(today - 1))) return time;
  }
  for (const char* const day : {"%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%E*S",
                                "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%E*S"}) {
    for (const char* const own : {"", "%Ez"}) {
      if (absl::ParseTime(absl::StrCat(day, own), text, zone, &time, &ignored)) return time;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected how long ago, as 5m or 1h30m, a time of day, as 12:30, or a date, as "
                   "2026-11-29 or 2026-11-29T12:30:15, got '",
                   text.substr(0, 64), "'"));
}

}  // namespace cadre::launcher
