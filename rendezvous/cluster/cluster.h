// The cluster's nodes and the parts of jobs on them: agents come and report, jobs get nodes and
// give them back. Pure; one thread.
//
// A part is a job's share of one node. Its life, which the records of the state tell:
//
//   placed ──agent told to start──▶ launcher joins the job ──▶ ended unasked, or
//      └───────────────▶ taken back ──agent told to stop──────▶ ended
//
// The cluster hears of jobs that are submitted or end (JobChanged) and of launchers that were
// given up (LauncherLost). What it has to tell a job is a ForJob.
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
#include "rendezvous/cluster/job_queue.h"
#include "rendezvous/cluster/log_source.h"
#include "rendezvous/cluster/parts.h"
#include "rendezvous/cluster/rests.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/cluster/schedule_input.h"
#include "rendezvous/step/context.h"

namespace cadre::cluster {

// The job has one more node.
struct Granted {
  std::string job;
};

// The job's launcher on the node ended unasked.
struct LauncherEnded {
  std::string job;
  std::string node;
  std::string how;
};

// The job has never begun and cannot. `try_later`: that may pass; else its spec is bad.
struct CannotBegin {
  std::string job;
  std::string why;
  bool try_later = false;
};

using ForJob = std::variant<Granted, LauncherEnded, CannotBegin>;

class Cluster {
 public:
  explicit Cluster(step::Context* context)
      : context_(*context), out_(context->out), agents_(context->config.lease) {}

  // The server began with a state: agents that it knows have a lease to come back, and nothing is
  // given away before.
  void AwaitAgents();
  // The first message of an agent's stream, and later ones.
  void AgentSaid(StreamId stream, const v1::NodeMessage& message);
  bool IsAgent(StreamId stream) const { return agents_.NodeOf(stream) != nullptr; }
  void StreamClosed(StreamId stream);
  void Drain(const std::string& node, bool drained, const std::string& reason);
  // The job was submitted, or it was once and has ended.
  void JobChanged(const std::string& job);
  // The job gave up its launcher there, which may still run: nobody else would end it. Until it has
  // ended its slots are taken, and the job may get another node.
  void LauncherLost(const std::string& job, const std::string& node);
  // The job has waited long for more nodes, and others may have its own until it gets all of them.
  void GiveBack(const std::string& job);
  void RunTimers();

  // Something has changed since the last Schedule() that decides who gets which node.
  bool HasChanged() const { return changed_; }
  void Schedule();
  std::vector<ForJob> TakeForJobs() { return std::exchange(for_jobs_, {}); }

  // Agents are connected or may come back, or a job waits to be tried again on a node.
  bool HasLeases() const { return NextLease() != MonoTime::Never(); }
  MonoTime NextLease() const { return std::min(agents_.NextDeadline(), rests_.NextDeadline()); }
  // The server can save again: agents that are gone have a whole lease to come back.
  void AwaitAbsent() { agents_.AwaitAbsent(context_.clock.lease_now()); }

  // As in parts.h.
  absl::Status CheckLauncher(const v1::NodeMessage& join) const {
    RETURN_IF_ERROR(CheckPartToken(agents_, join));
    return cluster::CheckLauncher(context_.state, join);
  }
  // What a submitted job waits for in the queue, or while it gathers: launchers on nodes that it
  // has, and nodes that it lacks. Empty: nothing.
  std::string WaitsFor(const state::Job& job, MonoTime at) const;
  std::vector<v1::ClusterNodeStatus> Nodes() const { return NodeStatuses(context_.state, agents_); }
  absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request) const {
    return cluster::FindLog(request, context_.state, agents_);
  }

 private:
  absl::Status MayJoin(const v1::NodeMessage& message) const;
  void AgentJoined(StreamId stream, const v1::NodeMessage& message);
  void Remember(const v1::AgentJoined& joined);
  // What runs there and what should, made to agree.
  void CompareParts(const std::string& node, const std::set<uint64_t>& runs);
  void AgentLeaving(const std::string& node);
  void PartEnded(const std::string& node, const v1::PartReport& report);
  // Its job is done with it, and may get another node.
  void PartRemains(const std::string& node, const v1::PartRemains& remains);
  void PartEndedUnasked(const saved::PlacedPart& part, const std::string& how, v1::PartBlame blame);
  // Nothing of the node's parts counts any more.
  void EndPartsOf(const std::string& node);
  // `avoid`: its launcher ended unasked; null: it was to end.
  void EndPart(const saved::PlacedPart& part, const v1::AvoidedNode* avoid);

  // What has changed of the nodes since the last pass may let jobs run that could not.
  void LookAtNodes();
  // The first of the queue that could run; those on the way that cannot are set aside.
  std::vector<ScheduleJob> NextInQueue(const Resting& resting);
  std::string WhyNotPlaced(const state::Job& job, MonoTime* until) const;
  void TakeBackFromEnded();
  // Gives back what jobs have that have never begun and cannot at present.
  void TakeBackFromUnstarted(const cluster::Schedule& schedule);
  void TakeBack(uint64_t id);
  void TakeBackFrom(const std::string& job, const std::string& node);
  void CarryOut(const cluster::Schedule& schedule);

  void SendToAgent(const std::string& node, v1::AgentOrder order);
  void SendStart(const saved::PlacedPart& part);
  void SendStop(const v1::Part& part);

  step::Context& context_;
  step::Outbox& out_;
  Agents agents_;
  Rests rests_;
  bool changed_ = false;
  // Mutable: why a job is set aside is put in words when somebody asks.
  mutable JobQueue queue_;
  // The last job of the queue that the last pass looked at, where there was no room for more.
  std::optional<JobQueue::Key> last_looked_at_;
  // As the last pass found them, and the shares of them that nobody gives back.
  std::vector<ScheduleNode> nodes_;
  std::vector<HeldShare> remains_;
  // Of the jobs that the last pass looked at and that lack nodes.
  std::map<std::string, Waiting> waiting_;
  std::vector<ForJob> for_jobs_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_CLUSTER_H_
