// cadre status --watch: looks at a server twice a second and shows what has changed.
#ifndef CADRE_LAUNCHER_COMMANDS_STATUS_WATCH_H_
#define CADRE_LAUNCHER_COMMANDS_STATUS_WATCH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/attach/control_client.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

inline constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
// A server that has answered may be away for this long.
inline constexpr absl::Duration kWatchPatience = absl::Seconds(15);
// In a pipe: from one line on a job's progress to the next.
inline constexpr absl::Duration kWatchProgressInterval = absl::Seconds(10);

struct StatusWatch {
  // Empty: all jobs, without end.
  std::string job;
  // A line of JSON for each change.
  bool json = false;
  // The block for a terminal: jobs and, with all jobs, of the cluster's nodes.
  std::function<std::string(const std::vector<v1::JobStatus>&, const v1::ListNodesReply&)> text;
};

// Returns when the job has ended, with its exit status; with another one, after a line on standard
// error, when the server cannot be asked.
int WatchStatus(ControlClient& client, const StatusWatch& watch);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_STATUS_WATCH_H_
