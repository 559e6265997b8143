// The rendezvous state machine. It finds whose an event is, job::Jobs' or cluster::Cluster's, keeps
// the clock that their leases and deadlines are counted on, and collects what they decide.
//
// Deterministic: no clock, file, thread, socket, randomness or log. The same events at the same
// times give the same effects. One caller thread.
//
// What the host must do with each returned Effects, in this order (after etcd-io/raft's Ready):
//   1. commit `append` durably; a host that cannot steps CanSave, holds what follows and tries on
//      (but not Renewed, which goes out then where no other server can lead, and else not at all);
//   2. only then deliver `send` and `reply`, in order, then carry out `close`;
//   3. log `notes`;
//   4. call Step again no later than NextDeadline(), with Tick if nothing else happened.
#ifndef CADRE_RENDEZVOUS_CORE_CORE_H_
#define CADRE_RENDEZVOUS_CORE_CORE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"
#include "proto/spec.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/cluster/cluster.h"
#include "rendezvous/cluster/log_source.h"
#include "rendezvous/core/event.h"
#include "rendezvous/core/stack_sources.h"
#include "rendezvous/job/jobs.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/config.h"
#include "rendezvous/step/context.h"
#include "rendezvous/step/effect.h"

namespace cadre {

class Core {
 public:
  explicit Core(const CoreConfig& config);
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
  // How busy its nodes are, and were. NOT_FOUND: no such job.
  absl::StatusOr<v1::JobUsage> Usage(absl::string_view job) const;

  // Whether a JobSubmitted will be taken. INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION,
  // RESOURCE_EXHAUSTED.
  absl::Status MaySubmit(const v1::JobSpec& spec, absl::string_view user) const;
  // Why the name of this job, which may have ended, is not given to another user than its own:
  // ALREADY_EXISTS.
  absl::Status RefuseName(const std::string& name) const;
  // Whether this very submission made the job, which may have ended since.
  bool WasSubmitted(const std::string& name, absl::string_view request_id) const;
  // Whose a job is; empty: the administrators'. Null: no such job.
  const std::string* OwnerOf(const std::string& job) const;
  // The cluster's nodes, by name.
  std::vector<v1::ClusterNodeStatus> ClusterNodes() const;
  // Where a worker's log is. FAILED_PRECONDITION, UNAVAILABLE.
  using LogSource = cluster::LogSource;
  absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request) const;
  // Whom to ask where a job's workers are. NOT_FOUND, FAILED_PRECONDITION.
  absl::StatusOr<StackSources> FindStacks(const v1::GetStacksRequest& request) const;
  // As in Welcome.
  uint64_t server_id() const { return context_.config.server_id; }

  // All durable state as text: equal texts, equal states.
  std::string DebugString() const;

  // OK, or INTERNAL naming what does not hold.
  absl::Status CheckInvariants() const;

 private:
  // One open stream of a job's node. Those of agents are the cluster's.
  struct Session {
    std::string job;
    std::string node;
    uint64_t incarnation = 0;
  };

  void BeginAnew();
  void Dispatch(const Event& event);
  void NodeSaid(StreamId stream, const v1::NodeMessage& message);
  void NodeJoined(StreamId stream, const v1::NodeMessage& message);
  void StreamClosed(StreamId stream);
  void CanSave(bool can);
  // What jobs and the cluster have to tell each other.
  void ExchangeNews();
  // Keeps track of streams and calls that a step has closed or answered.
  Effects Finish();

  state::State state_;
  step::Context context_;
  cluster::Cluster cluster_;
  job::Jobs jobs_;
  std::map<StreamId, Session> sessions_;
  // Streams that were closed and whose end the host has not reported yet.
  std::set<StreamId> closing_;
  // Calls that wait, by job.
  std::map<CallId, std::string> calls_;
  bool stepped_ = false;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CORE_H_
