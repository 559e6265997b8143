// Shows workers' output as it comes through the server from the nodes' agents. Blocks; one thread.
#ifndef CADRE_LAUNCHER_COMMANDS_LOG_FOLLOW_H_
#define CADRE_LAUNCHER_COMMANDS_LOG_FOLLOW_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/log_times.h"
#include "proto/control.pb.h"

namespace cadre::launcher {

// Without a rank no more workers than this are shown: each costs two calls in every round.
inline constexpr uint32_t kRanksShown = 64;
inline constexpr absl::Duration kFollowInterval = absl::Milliseconds(250);
// A server that is away for longer ends it.
inline constexpr absl::Duration kFollowPatience = absl::Seconds(60);
// For the last lines of the workers, once the job has ended.
inline constexpr absl::Duration kLastWords = absl::Seconds(5);

struct LogFollow {
  std::string job;
  std::optional<uint32_t> rank;
  // Until the job ends, or the generation that is named; else what is there now.
  bool follow = false;
  // Only this generation's, or that of the one before the newest; else the newest one's, and when
  // followed those that come after it.
  std::optional<uint64_t> generation;
  bool previous = false;
  // Of what is there at the beginning only so many lines of each stream.
  std::optional<uint64_t> tail;
  // And only what was written then or later; where no times are known all of it.
  std::optional<absl::Time> since;
  // Text for standard output or error is made safe for a terminal (TerminalLine).
  bool safe_output = false;
  bool safe_errors = false;
};

// Where they are terminals.
void ProtectTerminals(LogFollow* what);

// The server's answers, as ControlClient gives them.
struct LogServer {
  std::function<absl::StatusOr<v1::JobStatus>(const std::string& job)> get;
  std::function<absl::StatusOr<v1::ReadLogReply>(const v1::ReadLogRequest&)> read;
  // When what is in the file was written; none: it is not known. Null: it is of no file.
  std::function<std::vector<LogTime>(const v1::ReadLogRequest&)> times = nullptr;
};

// The client must live as long.
LogServer LogsOf(ControlClient& client);

// Standard output and error go where they went; with several ranks each line says whose it is. What
// is there at the beginning comes in the order in which it was written, to the second, where times
// are known, else by rank. A byte is shown once, also where a process goes on in the next
// generation. Returns the exit status of the command: of the job when it was followed to its end.
int FollowLogs(const LogServer& server, const LogFollow& what);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_LOG_FOLLOW_H_
