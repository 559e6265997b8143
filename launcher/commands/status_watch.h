// cadre status --watch: looks at jobs twice a second and shows what has changed.
#ifndef CADRE_LAUNCHER_COMMANDS_STATUS_WATCH_H_
#define CADRE_LAUNCHER_COMMANDS_STATUS_WATCH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

inline constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
// A server that has answered may be away for this long.
inline constexpr absl::Duration kWatchPatience = absl::Seconds(15);
// In a pipe: from one line on a job's progress to the next.
inline constexpr absl::Duration kWatchProgressInterval = absl::Seconds(10);

struct SeenJobs {
  std::vector<v1::JobStatus> jobs;
  // Of a cluster, where all jobs are watched.
  v1::ListNodesReply nodes;
};

struct StatusWatch {
  // That one job, or all. UNAVAILABLE: it may go better a moment later.
  std::function<absl::StatusOr<SeenJobs>()> look;
  // Of that job, until it ends; else of all, without end.
  bool one_job = false;
  // A line of JSON for each change.
  bool json = false;
  // The block for a terminal: jobs and, with all jobs, of the cluster's nodes.
  std::function<std::string(const SeenJobs&)> text;
};

// Returns when the job has ended, with its exit status; with another one, after a line on standard
// error, when nobody can be asked.
int WatchStatus(const StatusWatch& watch);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_STATUS_WATCH_H_
