// Shows workers' output as it comes through the server from the nodes' agents. Blocks; one thread.
#ifndef CADRE_LAUNCHER_COMMANDS_LOG_FOLLOW_H_
#define CADRE_LAUNCHER_COMMANDS_LOG_FOLLOW_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "launcher/commands/control_client.h"

namespace cadre {

// Without a rank no more workers than this are shown: each costs two calls in every round.
inline constexpr uint32_t kRanksShown = 64;
inline constexpr absl::Duration kFollowInterval = absl::Milliseconds(250);
// A server or an agent that is away for longer ends it.
inline constexpr absl::Duration kFollowPatience = absl::Seconds(60);

struct LogFollow {
  std::string job;
  std::optional<uint32_t> rank;
  // Until the job ends; else what is there now.
  bool follow = false;
};

// Standard output and error go where they went; with several ranks each line says whose it is.
// Returns the exit status of the command: of the job when it was followed to its end.
int FollowLogs(ControlClient& client, const LogFollow& what);

}  // namespace cadre

#endif  // CADRE_LAUNCHER_COMMANDS_LOG_FOLLOW_H_
