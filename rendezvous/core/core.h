// Core: the rendezvous state machine. It passes each event to job::Jobs or cluster::Cluster, keeps
// the clock on which their leases and deadlines are counted, and collects what they decide.
//
// Deterministic: no clock, file, thread, socket, randomness or log. The same events at the same
// times give the same effects. One caller thread.
//
// What the host must do with each returned Effects, in this order (after etcd-io/raft's Ready):
//   1. commit `append` durably. If that fails, step CanSave{false}, hold back all that follows and
//      retry; only Renewed is exempt: it is sent at once if no other server can take over, and else
//      dropped;
//   2. only then deliver `send` and `reply`, in order, then carry out `close`;
//   3. hand `account` to the accounting, and log `notes`;
//   4. call Step again no later than NextDeadline(), with Tick if nothing else happened.
#ifndef CADRE_RENDEZVOUS_CORE_CORE_H_
#define CADRE_RENDEZVOUS_CORE_CORE_H_

#include <cstdint>
#include <functional>
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
#include "rendezvous/cluster/allocations.h"
#include "rendezvous/cluster/cluster.h"
#include "rendezvous/core/core_event.h"
#include "rendezvous/core/stacks.h"
#include "rendezvous/job/jobs.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"
#include "rendezvous/step/core_config.h"
#include "rendezvous/step/effects.h"

namespace cadre {

class Core {
 public:
  explicit Core(const CoreConfig& config);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  Effects Step(MonoTime now, const Event& event);

  // The latest time at which Step must be called; MonoTime::Never() if there is nothing to wait
  // for.
  MonoTime NextDeadline() const;

  // The only function that changes durable state: Step applies its own records through it, and so
  // does replay.
  void Apply(const v1::Record& record);

  // Returns the durable state as the shortest list of records that gives it when replayed.
  std::vector<v1::Record> Snapshot() const;

  // Returns in one line what a job waits for and until when, or what it does. NOT_FOUND if there is
  // no such job.
  absl::StatusOr<std::string> Explain(MonoTime now, absl::string_view job) const;
  absl::StatusOr<v1::JobStatus> Status(MonoTime now, absl::string_view job) const;
  std::vector<v1::JobStatus> AllStatuses(MonoTime now) const;
  // Returns one job as AllStatuses() shows it. NOT_FOUND if there is no such job.
  absl::StatusOr<v1::JobStatus> StatusInList(MonoTime now, absl::string_view job) const;
  // Returns how busy the job's nodes are and were. NOT_FOUND if there is no such job.
  absl::StatusOr<v1::JobUsage> Usage(absl::string_view job) const;

  // Returns OK if a JobSubmitted would be accepted, or INVALID_ARGUMENT, FAILED_PRECONDITION or
  // RESOURCE_EXHAUSTED.
  // `within`: the id of the batch job of which the job is a step; empty: it is none. Then also
  // NOT_FOUND and PERMISSION_DENIED (cluster::CheckStep).
  // With `array` the indices of the job's elements.
  absl::Status MaySubmit(const v1::JobSpec& spec, absl::string_view user,
                         absl::string_view within = "", const v1::ArrayElements& array = {}) const;
  // Returns OK if a JobUpdated, JobRequeued or JobSignalled of the job would have an effect.
  // NOT_FOUND, FAILED_PRECONDITION, INVALID_ARGUMENT; of an update that only administrators may
  // make, and `is_administrator` is false: PERMISSION_DENIED.
  absl::Status MayUpdate(absl::string_view job, const v1::JobUpdate& update,
                         bool is_administrator) const;
  absl::Status MayRequeue(absl::string_view job) const;
  absl::Status MaySignal(absl::string_view job, int signal) const;
  // Returns the name of the job that this submission has created, which may have ended since; null
  // if there is none. `name` is the one that it was submitted with.
  const std::string* SubmittedAs(const std::string& name, absl::string_view request_id) const;
  // Returns the name of the job that was submitted last, of an array that of its first element;
  // null if it was dropped since, or there is none.
  const std::string* LastSubmitted() const;
  // Returns the name of the job that a user means: by a job's id, a step's ("57.0"), an element's
  // of an array ("57_0"), or the newest of the jobs that were
  // submitted with this name. Those with an owner whom `prefers` accepts come before all others.
  // Returns the text itself if there is no such job.
  std::string NameOf(const std::string& text,
                     const std::function<bool(absl::string_view owner)>& prefers) const;
  // Returns the owner of a job, empty for the administrators; null if there is no such job.
  const std::string* OwnerOf(const std::string& job) const;
  // Returns the cluster's nodes, sorted by name.
  std::vector<v1::ClusterNodeStatus> ClusterNodes() const;
  // Returns where a worker's log is. FAILED_PRECONDITION, UNAVAILABLE.
  using LogSource = cluster::LogSource;
  absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request) const;
  // Returns which nodes to ask for the stacks of a job's workers. NOT_FOUND, FAILED_PRECONDITION.
  absl::StatusOr<StackSources> FindStacks(const v1::GetStacksRequest& request) const;
  const state::State& state() const { return state_; }
  // The server id that Welcome carries.
  uint64_t server_id() const { return context_.config.server_id; }

  // Returns all durable state as text. States are equal if their texts are.
  std::string DebugString() const;

  // Returns OK, or INTERNAL naming the invariant that does not hold.
  absl::Status CheckInvariants() const;

 private:
  // One open stream of a job's node. Streams of agents are kept by Cluster.
  struct Session {
    std::string job;
    std::string node;
    uint64_t incarnation = 0;
  };

  void Begin();
  void Dispatch(const Event& event);
  void OnNodeMessage(StreamId stream, const v1::NodeMessage& message);
  void OnJoin(StreamId stream, const v1::NodeMessage& message);
  void OnStreamClosed(StreamId stream);
  void SetCanSave(bool can);
  void SignalJob(const JobSignalled& signalled);
  void SignalSteps(const std::string& batch_job, int signal);
  // Passes the pending events of the cluster to the jobs, and those of the jobs to the cluster.
  void ProcessPending();
  // Returns the effects of the step, and updates sessions_ and calls_ for the streams and calls
  // that it closed or answered.
  Effects Finish();

  state::State state_;
  step::Context context_;
  cluster::Cluster cluster_;
  job::Jobs jobs_;
  std::map<StreamId, Session> sessions_;
  // Streams that were closed and whose end the host has not reported yet.
  std::set<StreamId> closing_;
  // Maps each waiting call to its job.
  std::map<CallId, std::string> calls_;
  bool stepped_ = false;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CORE_H_
