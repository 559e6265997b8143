// Shows the state of a server over HTTP, read only:
//
//   /                     the dashboard, a page that loads the rest
//   /healthz              whether the server answers
//   /metrics              for Prometheus
//   /api/jobs             all jobs as JSON; /api/jobs/JOB one of them
//   /api/nodes            the cluster's nodes
//   /api/events[?job=JOB] all of these, pushed whenever they change
//   /api/jobs/JOB/usage   the use of its nodes, now and before
//   /api/jobs/JOB/logs    which workers' output can be read here
//   /api/jobs/JOB/log?generation=G&rank=R&stream=stdout|stderr   its end, followed; for a submitted
//                         job through its node's agent
//   /api/jobs/JOB/stacks[?rank=R] the stacks of its ranks, from their nodes
//
// The page itself and /healthz show nothing about jobs and need no token; all else requires the
// server's token, or a user's or read-only one derived from it, as "Authorization: Bearer TOKEN",
// if the server has a token. All answers pass through ShowTo (service/permissions.h).
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/web/dashboard/event_streams.h"

namespace cadre::web {

// The interval at which the core and log files are polled while there is a reader.
inline constexpr absl::Duration kDashboardInterval = absl::Milliseconds(250);

// The limit of concurrent requests and streams of one user, out of kHttpConnectionsMax.
inline constexpr size_t kReadersOfUserMax = 16;

struct DashboardOptions {
  // An address or a name of this machine.
  std::string host = "127.0.0.1";
  // 0: a free port.
  int port = 0;
  // The server's token. Empty: no token is required, which is allowed on loopback only.
  std::string token;
  // Returns the server's current token, which may have been replaced since. Any thread. Null: the
  // token does not change.
  std::function<std::string()> token_now;
  // The log directory of jobs that were not submitted to the cluster, if it is on this machine;
  // otherwise empty.
  std::string log_dir;
};

// Thread safe.
class Dashboard {
 public:
  // Serves when it returns. The cores that `serving` returns must outlive it. Errors as
  // Server::Start.
  static absl::StatusOr<std::unique_ptr<Dashboard>> Start(const DashboardOptions& options,
                                                          Serving serving);
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  int port() const;

  // Sends readers the last state, ends their streams, and waits for them for `limit` at most.
  void Finish(absl::Duration limit);

 private:
  struct Impl;
  explicit Dashboard(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_H_
