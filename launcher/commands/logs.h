// cadre logs: shows what workers write, as they write it, through the server and the nodes' agents
// or from the log files; and when the content of a log file was written. Blocks; one thread.
#ifndef CADRE_LAUNCHER_COMMANDS_LOGS_H_
#define CADRE_LAUNCHER_COMMANDS_LOGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/attach/control_client.h"
#include "proto/control.pb.h"

namespace cadre::launcher {

// --- when a log file was written ---

// The bytes from `offset` to that of the next entry were written at this time, or up to a second
// later.
struct LogTime {
  int64_t unix_ms = 0;
  uint64_t offset = 0;
};

// Reads the times of this log file from the file beside it (base/log_paths.h). Times and offsets
// ascend. Empty: no times are known.
std::vector<LogTime> ReadLogTimes(const std::string& log_path);

// Returns the offset from which the content was written at `since` or later; it may be up to a
// second too early. `end`: nothing was written since.
uint64_t OffsetSince(const std::vector<LogTime>& times, absl::Time since, uint64_t end);

// Parses "5m" (5 minutes ago); "12:30" or "12:30:15" (the last time at which the clock showed
// that); "2026-11-29", optionally with a time after a T or a blank, in `zone` unless the text has a
// zone of its own ("Z", "+01:00").
absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now, absl::TimeZone zone);

// --- following the output ---

// The most workers that are shown if no rank is given: each costs two calls in every round.
inline constexpr uint32_t kRanksShown = 64;
inline constexpr absl::Duration kFollowInterval = absl::Milliseconds(250);
// At first the interval is shorter if there are few ranks, so that a short job is seen to end soon.
inline constexpr absl::Duration kFirstFollowInterval = absl::Milliseconds(50);
inline constexpr absl::Duration kFirstFollowTime = absl::Seconds(2);
// Following ends if the server is away for longer.
inline constexpr absl::Duration kFollowTimeout = absl::Seconds(60);
// How long to wait for the workers' last lines once the job has ended.
inline constexpr absl::Duration kLastLinesTimeout = absl::Seconds(5);

struct LogFollow {
  std::string job;
  std::optional<uint32_t> rank;
  // Follows until the job, or the generation that is named, ends; otherwise shows what exists now.
  bool follow = false;
  // Shows only this generation, or with `previous` the one before the newest; otherwise the newest,
  // and when following also later ones.
  std::optional<uint64_t> generation;
  bool previous = false;
  // The number of lines of each stream to show of what exists at the beginning.
  std::optional<uint64_t> tail;
  // Also limits that to what was written at this time or later; if no times are known, everything
  // is shown.
  std::optional<absl::Time> since;
  // Makes text for standard output or error safe for a terminal (TerminalLine).
  bool safe_output = false;
  bool safe_errors = false;
  // Which streams are shown, and of how many ranks if none is named.
  bool shows_output = true;
  bool shows_errors = true;
  uint32_t most_ranks = kRanksShown;
  // The beginning of each line of a rank. Null: "[RANK]: ", or nothing if a rank is named.
  std::function<std::string(uint32_t rank)> prefix = nullptr;
  // Shows bytes just as they were written, without prefixes: also, if `unbuffered`, those of a line
  // that is not complete.
  bool exact = false;
  bool unbuffered = false;
  // Called with each state of the job before its output is shown.
  std::function<void(const v1::JobStatus& job)> on_status = nullptr;
  // Called when a job has ended that was followed, in place of a line about its end; returns the
  // command's exit status.
  std::function<int(const v1::JobStatus& job)> on_end = nullptr;
  // Waits between two rounds, and may return earlier. Null: it sleeps.
  std::function<void(absl::Duration duration)> wait = nullptr;
};

// Sets safe_output and safe_errors for streams that are terminals.
void ProtectTerminals(LogFollow* what);

// The source of the output, with answers as ControlClient gives them.
struct LogServer {
  std::function<absl::StatusOr<v1::JobStatus>(const std::string& job)> get;
  std::function<absl::StatusOr<v1::ReadLogReply>(const v1::ReadLogRequest&)> read;
  // Returns when the content of the file was written; empty: not known. Null: the output comes from
  // a server and not from a file.
  std::function<std::vector<LogTime>(const v1::ReadLogRequest&)> times = nullptr;
};

// `client` must outlive the result.
LogServer LogsOf(ControlClient& client);

// Writes the workers' standard output and error to the same streams; with several ranks each line
// names its rank. Output that exists at the beginning comes in the order in which it was written,
// to the second, if times are known, otherwise by rank. Each byte is shown once, also if a process
// continues in the next generation. Returns the command's exit status: that of the job if it was
// followed to its end.
int FollowLogs(const LogServer& server, const LogFollow& what);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_LOGS_H_
