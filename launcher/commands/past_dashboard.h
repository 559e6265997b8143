// The dashboard's page for runs that are over: it shows the files that they left in log
// directories, and calls no server.
//
//   /api/jobs        all runs, the newest first, each as a job of the name JOB@RUN
//   /api/jobs/ID, /api/jobs/ID/logs, /api/jobs/ID/log?…, /api/events[?job=ID]   as
//   rendezvous/web/dashboard/dashboard.h has them
//
// Thread safe.
#ifndef CADRE_LAUNCHER_COMMANDS_PAST_DASHBOARD_H_
#define CADRE_LAUNCHER_COMMANDS_PAST_DASHBOARD_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre::launcher {

// The number of runs that are listed, the newest ones.
inline constexpr size_t kShownRuns = 500;

class PastDashboard {
 public:
  // Serves requests with `token` on loopback, on a free port. The token is needed because other
  // users of the machine can connect to the port too, and may not be allowed to read the
  // directories.
  static absl::StatusOr<std::unique_ptr<PastDashboard>> Start(std::vector<std::string> log_dirs,
                                                              std::string token);
  ~PastDashboard();
  PastDashboard(const PastDashboard&) = delete;
  PastDashboard& operator=(const PastDashboard&) = delete;

  int port() const;

 private:
  struct Impl;
  explicit PastDashboard(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_PAST_DASHBOARD_H_
