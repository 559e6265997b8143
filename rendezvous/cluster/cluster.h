// Cluster: the nodes of the cluster and the allocations of jobs on them. Agents connect and report;
// jobs get nodes and give them back. Pure; one thread.
//
// An allocation is a job's share of one node; records and messages call it a part. Its life cycle
// is in the records of the state:
//
//   placed ──agent told to start──▶ launcher joins the job ──▶ ended unasked, or
//      └───────────────▶ taken back ──agent told to stop──────▶ ended
//
// The core notifies Cluster of jobs that were submitted or have ended (JobChanged) and of launchers
// that were given up (LauncherLost). Cluster notifies jobs by JobEvent, which the core takes in
// Core::ProcessPending().
#ifndef CADRE_RENDEZVOUS_CLUSTER_CLUSTER_H_
#define CADRE_RENDEZVOUS_CLUSTER_CLUSTER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/time.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/cluster/allocations.h"
#include "rendezvous/cluster/job_queue.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/cluster/start_estimate.h"
#include "rendezvous/step/context.h"

namespace cadre::cluster {

// The job has got one more node.
struct Granted {
  std::string job;
};

// The job's launcher on the node ended without being told to.
struct LauncherEnded {
  std::string job;
  std::string node;
  std::string how;
};

// The job has never begun and cannot begin. `try_later`: the reason may pass; else the spec is bad.
struct CannotBegin {
  std::string job;
  std::string why;
  bool try_later = false;
};

// The batch job of this step has ended, is being stopped or begins again, and the step is to end.
struct StepIsOver {
  std::string step;
  std::string why;
};

// The queued job can never begin, since the jobs on which it depends have ended in another way.
struct NeverEligible {
  std::string job;
  std::string why;
};

using JobEvent = std::variant<Granted, LauncherEnded, CannotBegin, StepIsOver, NeverEligible>;

class Cluster {
 public:
  explicit Cluster(step::Context* context)
      : context_(*context), out_(context->out), agents_(context->config.lease) {}

  // Called when the server begins with a state. Agents of known nodes have a lease to reconnect,
  // and no nodes are handed out before that.
  void AwaitAgents();
  // Handles the first message of an agent's stream, and later ones.
  void OnAgentMessage(StreamId stream, const v1::NodeMessage& message);
  bool IsAgent(StreamId stream) const { return agents_.NodeOf(stream) != nullptr; }
  void StreamClosed(StreamId stream);
  void Drain(const std::string& node, bool drained, const std::string& reason);
  // Called when the job was submitted, when a submitted job has ended, was changed by its user or
  // is in the queue again, and when a batch job or a step is being stopped or begins again.
  void JobChanged(const std::string& job);
  // Called when the job has given up its launcher there, which may still run: the agent is told to
  // end it, as nothing else would. Its slots stay taken until it has ended; the job may get another
  // node.
  void LauncherLost(const std::string& job, const std::string& node);
  // Called when the job has waited long for more nodes, or was put back into the queue. Its own
  // nodes become free for other jobs until it can get all of them.
  void GiveBack(const std::string& job);
  void RunTimers();

  // Whether something has changed since the last Schedule() that affects which job gets which node.
  bool HasChanged() const { return changed_; }
  void Schedule();
  bool HasJobEvents() const { return !job_events_.empty(); }
  std::vector<JobEvent> TakeJobEvents() { return std::exchange(job_events_, {}); }

  // Whether agents are connected or may reconnect, or a job's backoff on a node runs.
  bool HasLeases() const { return NextLease() != MonoTime::Never(); }
  MonoTime NextLease() const { return std::min(agents_.NextDeadline(), backoffs_.NextDeadline()); }
  // When a job of the queue may begin that may not yet; host time.
  MonoTime NextEligible() const { return queue_.NextEligible(); }
  // Called when the server can save again: disconnected agents get a whole lease to reconnect.
  void AwaitAbsent() { agents_.AwaitAbsent(context_.clock.lease_now()); }

  // Returns what a submitted job waits for in the queue, or while it gathers: launchers on nodes
  // that it has, and nodes that it lacks. Empty if nothing.
  std::string WaitsFor(const state::Job& job, MonoTime at) const;
  // Returns when the waiting job is expected to begin; host time.
  StartRange ExpectedStart(const state::Job& job, MonoTime at) const;
  // Returns Slurm's word for the reason why the job waits in the queue; empty if it does not.
  std::string QueueReason(const state::Job& job) const;
  std::vector<v1::ClusterNodeStatus> Nodes() const { return NodeStatuses(context_.state, agents_); }
  absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request) const {
    return cluster::FindLog(request, context_.state, agents_);
  }

 private:
  absl::Status CheckAgentMayJoin(const v1::NodeMessage& message) const;
  void OnAgentJoined(StreamId stream, const v1::NodeMessage& message);
  // Saves the agent's description of its node if it is new.
  void SaveNode(const v1::AgentJoined& joined);
  // Makes what the agent runs agree with the state: sends orders to start and to stop allocations.
  void ReconcileAllocations(const std::string& node, const std::set<uint64_t>& runs);
  // Takes all allocations of the node back, since its agent ends them and takes no new ones.
  void OnAgentClosing(const std::string& node);
  void OnAgentLeaving(const std::string& node);
  void OnAllocationEnded(const std::string& node, const v1::PartReport& report);
  // Takes the allocation back because a process of it could not be killed. The job may get another
  // node.
  void OnUnkillableProcesses(const std::string& node, const v1::PartRemains& remains);
  void OnLauncherEndedUnasked(const saved::PlacedPart& allocation, const std::string& how,
                              v1::PartBlame blame);
  // Ends all allocations of the node.
  void EndAllocationsOf(const std::string& node);
  // `avoid` is set if the launcher ended unasked, and null if it was told to end.
  void EndAllocation(const saved::PlacedPart& allocation, const v1::AvoidedNode* avoid);

  // Compares the nodes with those of the last pass: if they changed, jobs that were set aside may
  // be able to run.
  void UpdateNodes();
  // Returns the first jobs of the queue that could run. Jobs before them that cannot are set aside.
  std::vector<ScheduleJob> NextInQueue(const BackedOffNodes& backed_off);
  // Whether the script of the batch job still runs on a node that was taken back from it, and can
  // be ended. Two runs of one script at a time would write to the same files.
  bool IsScriptEnding(const state::Job& job) const;
  // Sets the job aside, and ends it if it can never begin.
  void SetNotEligible(const std::string& name, NotEligible why);
  // Returns why the job waits, and sets the latest time at which it will be placed, if that is
  // known. Empty: no pass has considered the job.
  std::string WaitReason(const state::Job& job, MonoTime* until) const;
  void TakeBackFromEnded();
  // Takes back the nodes of jobs that have never begun and cannot begin at present.
  void TakeBackFromUnstarted(const cluster::Schedule& schedule);
  // Takes back the nodes of batch jobs that have lost the node of their script: they begin again.
  void TakeBackWithoutScript();
  // Gives steps of batch jobs nodes of their jobs.
  void ScheduleSteps(const BackedOffNodes& backed_off);
  // Ends the steps that are not to go on without their batch jobs' present runs.
  void EndSteps();
  void TakeBack(uint64_t id);
  void TakeBackFrom(const std::string& job, const std::string& node);
  void Execute(const cluster::Schedule& schedule);
  // Saves a new allocation, but does not start its launcher; returns its id. `within`: as in
  // v1::Part.
  uint64_t Place(const Placed& placed, uint64_t within);

  void SendToAgent(const std::string& node, v1::AgentOrder order);
  void SendStart(const saved::PlacedPart& allocation);
  void SendStop(const v1::Part& allocation);

  step::Context& context_;
  step::EffectsBuilder& out_;
  Agents agents_;
  StartBackoffs backoffs_;
  bool changed_ = false;
  // Mutable, because the reason why a job is set aside is put in words only when it is asked for.
  mutable JobQueue queue_;
  // The last job of the queue that the last pass considered, if there was no room for more.
  std::optional<JobQueue::Key> last_considered_;
  // The steps of batch jobs that have not ended, by their ids.
  std::map<uint64_t, std::string> steps_;
  // The nodes as the last pass found them, and the shares of them that stay taken because SIGKILL
  // did not end the processes there.
  std::vector<ScheduleNode> nodes_;
  std::vector<HeldShare> unkillable_;
  // The jobs that the last pass considered, and when those of them that wait are expected to begin:
  // computed when it is first asked for.
  std::vector<ScheduleJob> considered_;
  mutable std::optional<std::map<std::string, StartRange>> expected_starts_;
  // Why the jobs wait that the last pass considered and that lack nodes.
  std::map<std::string, Waiting> waiting_;
  std::vector<JobEvent> job_events_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_CLUSTER_H_
