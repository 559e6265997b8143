// The rendezvous state machine: jobs, nodes, leases, generations, ranks, restarts, keys.
//
// Deterministic: no clock, file, thread, socket, randomness or log. The same events at the same
// times give the same effects. One caller thread.
//
// What the host must do with each returned Effects, in this order (after etcd-io/raft's Ready):
//   1. commit `append` durably; a host that cannot steps CanSave, holds what follows and tries on;
//   2. only then deliver `send` and `reply`, in order, then carry out `close`;
//   3. log `notes`;
//   4. call Step again no later than NextDeadline(), with Tick if nothing else happened.
#ifndef CADRE_RENDEZVOUS_CORE_CORE_H_
#define CADRE_RENDEZVOUS_CORE_CORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"
#include "rendezvous/core/effect.h"
#include "rendezvous/core/event.h"

namespace cadre {

struct CoreConfig {
  // One life of the state; agents notice when it changes.
  uint64_t server_id = 1;
  // A node that has not been heard for this long is lost.
  absl::Duration lease = absl::Seconds(10);
  // A node whose stream ended is lost after this, unless the same incarnation comes back.
  absl::Duration reconnect_grace = absl::Milliseconds(100);
  // The one job this server is for; empty: any. A server inside a launcher ends with its job, so it
  // must not take in others.
  std::string only_job;
  // How long the host's nodes may take to report a stopped generation beyond its grace.
  absl::Duration stop_margin = absl::Seconds(10);
  // Wall clock, milliseconds since the Unix epoch, at MonoTime 0. For people only.
  int64_t unix_ms_at_zero = 0;
};

class Core {
 public:
  explicit Core(const CoreConfig& config);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  Effects Step(MonoTime now, const Event& event);

  // When Step must be called at the latest. MonoTime::Never() if there is nothing to wait for.
  MonoTime NextDeadline() const;

  // The only mutator of durable state: Step applies its own records through it, and so does replay.
  void Apply(const v1::Record& record);

  // The durable state as a list of records, the shortest that gives it when replayed.
  std::vector<v1::Record> Snapshot() const;

  // What a job waits for and until when, or what it does; one line. NOT_FOUND: no such job.
  absl::StatusOr<std::string> Explain(MonoTime now, absl::string_view job) const;
  absl::StatusOr<v1::JobStatus> Status(MonoTime now, absl::string_view job) const;
  std::vector<v1::JobStatus> AllStatuses(MonoTime now) const;

  // Whether a JobSubmitted will be taken. INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION,
  // RESOURCE_EXHAUSTED.
  absl::Status MaySubmit(const v1::JobSpec& spec, absl::string_view user) const;
  // Why the name of this job, which may have ended, is not given to another user than its own:
  // ALREADY_EXISTS.
  absl::Status RefuseName(const std::string& name) const;
  // Whether this very submission made the job, which may have ended since.
  bool WasSubmitted(const std::string& name, absl::string_view request_id) const;
  // The cluster's nodes, by name.
  std::vector<v1::ClusterNodeStatus> ClusterNodes() const;
  // How a worker's log is asked for: on which stream, and the message but for call, stream, place
  // and limit. FAILED_PRECONDITION: no such job, run or rank, or the job was not submitted.
  // UNAVAILABLE: its node has no agent, or one that is away.
  struct LogSource {
    StreamId stream;
    v1::ReadLog read;
    // The job is over, and nothing of it is left on the node.
    bool ended = false;
  };
  absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request) const;

  // All durable state as text: equal texts, equal states.
  std::string DebugString() const;

  // OK, or INTERNAL naming what does not hold.
  absl::Status CheckInvariants() const;

  // Known to core_impl.h only.
  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CORE_H_
