// A server seen from outside, over HTTP and read only:
//
//   /                     the dashboard, a page that reads the rest
//   /healthz              whether it answers
//   /metrics              for Prometheus
//   /api/jobs             all jobs as JSON; /api/jobs/JOB one of them
//   /api/nodes            the cluster's nodes
//   /api/events[?job=JOB] all of these, pushed whenever they change
//   /api/jobs/JOB/usage   how busy its nodes are, and were
//   /api/jobs/JOB/logs    which workers' output can be read here
//   /api/jobs/JOB/log?generation=G&rank=R&stream=stdout|stderr   its end, followed; of a job that
//                         was submitted through its node's agent
//   /api/jobs/JOB/stacks[?rank=R] where its ranks are now, which their nodes are asked
//
// The page itself and /healthz say nothing about jobs and are open; all else wants the server's
// token, or one of a user or a read-only one that was made from it, as "Authorization: Bearer
// TOKEN" where there is one. Nothing goes out but through service/disclosure.h.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/web/dashboard/event_streams.h"

namespace cadre::web {

// How often the core and log files are looked at while somebody reads.
inline constexpr absl::Duration kDashboardInterval = absl::Milliseconds(250);

// Requests and streams of one user at once, of kHttpConnectionsMax.
inline constexpr size_t kReadersOfUserMax = 16;

struct DashboardOptions {
  // Address or name of this machine.
  std::string host = "127.0.0.1";
  // 0: one that is free.
  int port = 0;
  // The server's token. Empty: none is wanted, which only loopback allows.
  std::string token;
  // Where there is one: the server's token at present, which may have been replaced since. Any
  // thread. Null: it stays.
  std::function<std::string()> token_now;
  // The log directory of jobs that nodes brought, where it is this machine's. Empty: it is not.
  std::string log_dir;
};

// Thread safe.
class Dashboard {
 public:
  // Serves when it returns. What `serving` names outlives this. Errors as Server::Start.
  static absl::StatusOr<std::unique_ptr<Dashboard>> Start(const DashboardOptions& options,
                                                          Serving serving);
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  int port() const;

  // Shows readers the last state and ends their streams; waits for them `limit` at most.
  void Finish(absl::Duration limit);

 private:
  struct Impl;
  explicit Dashboard(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_H_
