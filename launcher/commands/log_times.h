// When workers wrote what is in their log files, as it is kept beside these (base/log_paths.h).
#ifndef CADRE_LAUNCHER_COMMANDS_LOG_TIMES_H_
#define CADRE_LAUNCHER_COMMANDS_LOG_TIMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre::launcher {

// From this byte to the next entry's was written at this time, or up to a second later.
struct LogTime {
  int64_t unix_ms = 0;
  uint64_t offset = 0;
};

// Of this log file, times and offsets ascending. Empty: none are there.
std::vector<LogTime> ReadLogTimes(const std::string& log_path);

// Where what was written at `since` or later begins, up to a second before it; `end`: nothing was.
uint64_t OffsetSince(const std::vector<LogTime>& times, absl::Time since, uint64_t end);

// "5m" ago; "12:30" or "12:30:15", the last one that there was; "2026-11-29", and with a time after
// a T or a blank, in `zone` unless it ends with its own ("Z", "+01:00").
absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now, absl::TimeZone zone);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_LOG_TIMES_H_
