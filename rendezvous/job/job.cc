#include "rendezvous/job/job.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/job/failure.h"
#include "rendezvous/job/status.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/state_limits.h"

namespace cadre::job {
namespace {

// The nodes of a larger job are sent changes at most this often: sending each worker's start to
// each node takes messages in the square of the number of nodes.
constexpr size_t kMaxNodesUpdatedAtOnce = 16;
constexpr absl::Duration kPushInterval = absl::Milliseconds(200);
// In a very large job, at most once in this time for each of its nodes, so that a server sends at
// most 4,000 such messages a second.
constexpr absl::Duration kPushIntervalPerNode = absl::Microseconds(250);
// Changes of progress alone are sent this often, and less often in a large job.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
constexpr absl::Duration kLargeProgressInterval = absl::Seconds(5);

// Returns the host time at which its nodes are to be sent what changed, which limits the number of
// messages.
MonoTime PushAt(const VolatileState& state, MonoTime now) {
  const size_t nodes = state.connections.all().size();
  const bool large = nodes > kMaxNodesUpdatedAtOnce;
  const absl::Duration least =
      std::max(kPushInterval, kPushIntervalPerNode * static_cast<int64_t>(nodes));
  if (state.push.changed) return large ? state.push.last + least : now;
  if (!state.push.progressed) return MonoTime::Never();
  return state.push.last + (large ? std::max(kLargeProgressInterval, least) : kProgressInterval);
}

}  // namespace

Job::Job(std::string name, step::Context* context, const ClusterWaits* cluster_waits,
         ClusterEvents* cluster_events)
    : name_(std::move(name)),
      context_(*context),
      state_(context->state.jobs.at(name_)),
      cluster_waits_(*cluster_waits),
      cluster_events_(*cluster_events),
      volatile_(context, state_),
      out_(name_, state_, volatile_.connections, &context->out) {}

void Job::Restore() {
  volatile_.ordered_at = state_.phase() == v1::STOPPING
                             ? context_.clock.now()
                             : context_.clock.FromRecord(state_.generation.saved.formed_us());
  // Whether the workers were asked to save before the restart is unknown. If they exit as asked,
  // that is no failure.
  if (MayAskForCheckpoint(state_)) volatile_.checkpoint_asked = state_.generation.number();
  volatile_.progress.BeginAt(context_.now);
  for (const auto& [node, known] : state_.nodes) volatile_.connections.Restore(node);
  ExtendAbsentLeases();
}

void Job::ExtendAbsentLeases() {
  volatile_.connections.ExtendAbsentLeases(state_.nodes);
  MarkDirty(true);
}

void Job::OnNodeRefused(const std::string& why) {
  volatile_.refusal = why;
  MarkDirty(true);
}

void Job::OnMessage(const std::string& node, const v1::NodeMessage& message) {
  // The core passes on only messages of open streams.
  CADRE_CHECK(volatile_.connections.StreamOf(node).has_value(), "job ", name_, ", node ", node);
  volatile_.connections.Renew(node);
  if (message.has_store()) return OnStoreCall(keyspace::Requester{0, node}, message.store());
  if (state::HasEnded(state_.phase())) return;
  switch (message.body_case()) {
    case v1::NodeMessage::kWorkerStarted:
    case v1::NodeMessage::kWorkerExited:
    case v1::NodeMessage::kWorkerGaveUp:
    case v1::NodeMessage::kWorkerRemains:
    case v1::NodeMessage::kImports:
    case v1::NodeMessage::kNodeStopped:
    case v1::NodeMessage::kProgress:
    case v1::NodeMessage::kEvidence:
      return OnGenerationMessage(node, message);
    case v1::NodeMessage::kLeave: {
      const v1::FailureCause cause = message.leave().cause();
      const bool known = cause == v1::PREEMPTED || cause == v1::CANCELLED;
      const std::string reason = OneLine(message.leave().reason(), state::kMaxNodeTextBytes);
      return RemoveNode(node, known ? cause : v1::NODE_LOST, v1::NodeRemoved::LEFT,
                        reason.empty() ? "it left" : absl::StrCat("it left: ", reason),
                        absl::OkStatus());
    }
    case v1::NodeMessage::kCancel:
      return Cancel(message.cancel().reason(), message.cancel().signal(),
                    message.cancel().cause() == v1::PREEMPTED ? v1::PREEMPTED : v1::CANCELLED,
                    message.cancel().at_once());
    case v1::NodeMessage::kRenew: {
      if (message.renew().has_usage()) {
        volatile_.usage.Note(node, message.renew().usage(),
                             context_.now.micros() - state_.saved.times().created_us());
      }
      if (message.renew().number() == 0) return;
      v1::ServerMessage renewed = out_.Message();
      renewed.mutable_renewed()->set_number(message.renew().number());
      return out_.SendTo(node, std::move(renewed));
    }
    case v1::NodeMessage::kJoin:
    case v1::NodeMessage::kStore:
    case v1::NodeMessage::kAgent:
    case v1::NodeMessage::kStacks:  // handled by the host
      return;
    case v1::NodeMessage::BODY_NOT_SET:
      // A newer agent may send messages that this server does not know.
      return out_.Note(absl::StrCat("ignored a message of node ", node,
                                    " whose type this server does not know"));
  }
}

void Job::OnStreamClosed(const std::string& node) {
  if (state::HasEnded(state_.phase())) return volatile_.connections.Erase(node);
  volatile_.connections.Detach(node, FromProto(state_.nodes.at(node).node().adopt_timeout()));
  MarkDirty(false);
}

void Job::OnStoreCall(const keyspace::Requester& requester, const v1::StoreRequest& request) {
  volatile_.store.Execute(requester, request);
  MarkDirty(false);
}

void Job::OnStoreCallDropped(CallId call) {
  volatile_.store.ForgetCall(call);
  MarkDirty(false);
}

void Job::OnNodeGranted() {
  volatile_.granted_at = context_.clock.now();
  volatile_.gives_back = false;
  MarkDirty(true);
}

void Job::OnLauncherEnded(const std::string& node, const std::string& how) {
  if (volatile_.connections.Find(node) != nullptr) volatile_.connections.SetLauncherEnd(node, how);
  MarkDirty(true);
}

void Job::OnCannotBegin(const std::string& why, bool try_later) {
  End(v1::FAILED, try_later ? kExitTryLater : kExitBadSpec, why,
      PlainFailure(v1::EXEC_FAILED, "", 0, why));
}

void Job::Advance() {
  volatile_.store.Expire();
  while (AdvancePhase()) {
  }
  PendingPush& push = volatile_.push;
  const MonoTime now = context_.now;
  if (state::HasEnded(state_.phase())) push.changed = push.progressed = false;
  // Messages that cannot be sent would only pile up.
  if (context_.clock.can_save() && PushAt(volatile_, now) <= now) {
    v1::ServerMessage message = out_.Message();
    *message.mutable_status() = StatusOf(name_, view(), cluster_waits_(state_, context_.now),
                                         context_.now, StatusDetail::kForAgents);
    if (message.status().checkpoint_wanted())
      volatile_.checkpoint_asked = state_.generation.number();
    out_.SendToAll(message);
    push.changed = push.progressed = false;
    push.last = now;
  }
  volatile_.deadline = std::min({PhaseDeadline(view()), volatile_.store.NextDeadline(),
                                 context_.clock.FromHost(PushAt(volatile_, now))});
  volatile_.dirty = false;
}

void Job::MarkDirty(bool changed) {
  volatile_.dirty = true;
  if (changed) volatile_.push.changed = true;
}

namespace {

#define CADRE_HOLDS(condition, ...)                                          \
  do {                                                                       \
    if (!(condition)) return absl::InternalError(absl::StrCat(__VA_ARGS__)); \
  } while (false)

absl::Status CheckGeneration(const std::string& name, const state::Job& job) {
  const state::Generation& generation = job.generation;
  uint32_t next_rank = 0, busy = 0, succeeded = 0, running = 0, assigned = 0;
  for (const saved::Member& member : generation.saved.members()) {
    CADRE_HOLDS(member.first_rank() == next_rank && member.slots() > 0, "job ", name,
                ": ranks are not contiguous at node ", member.node());
    next_rank += member.slots();
    busy += !member.lost() && !member.cleared();
    CADRE_HOLDS(generation.node_ranks.count(member.node()) == 1, "job ", name, ": node ",
                member.node(), " has no node rank");
    CADRE_HOLDS(member.lost() || job.nodes.count(member.node()) == 1, "job ", name, ": member ",
                member.node(), " is neither admitted nor lost");
  }
  CADRE_HOLDS(generation.node_ranks.size() == generation.nodes(), "job ", name,
              ": a node is twice in one generation");
  CADRE_HOLDS(next_rank == generation.world_size(), "job ", name, ": ranks are no bijection");
  for (const int worker : generation.saved.workers()) {
    succeeded += worker == saved::RANK_SUCCEEDED;
    running += worker == saved::RANK_RUNNING;
    assigned += worker == saved::RANK_ASSIGNED;
  }
  CADRE_HOLDS(busy == generation.nodes_busy && succeeded == generation.succeeded &&
                  running == generation.running &&
                  generation.started + assigned == generation.world_size(),
              "job ", name, ": counts of workers or nodes are wrong");
  return absl::OkStatus();
}

absl::Status CheckPhase(const std::string& name, const state::Job& job) {
  const state::Generation& generation = job.generation;
  if (job.phase() == v1::RUNNING || job.phase() == v1::STOPPING) {
    const uint32_t size = generation.nodes();
    CADRE_HOLDS(size >= job.policy.min && size <= job.policy.max && size % job.policy.unit == 0,
                "job ", name, ": a generation of ", size, " nodes");
  }
  CADRE_HOLDS(job.phase() != v1::STOPPING || generation.nodes_busy > 0, "job ", name,
              ": waits for nodes to stop, and none has workers");
  CADRE_HOLDS(job.phase() != v1::RUNNING || generation.root_cause() == nullptr, "job ", name,
              ": runs although it has failed");
  CADRE_HOLDS(job.phase() != v1::RUNNING || generation.succeeded < generation.world_size(), "job ",
              name, ": runs although all workers are done");
  CADRE_HOLDS(state::HasEnded(job.phase()) == job.saved.has_verdict(), "job ", name,
              ": phase and verdict disagree");
  CADRE_HOLDS(job.saved.restarts().counted() <= job.saved.restarts().all(), "job ", name,
              ": miscounted restarts");
  CADRE_HOLDS(job.policy.restart_window != absl::InfiniteDuration() ||
                  job.saved.restarts().counted() <= job.policy.restart_max,
              "job ", name, ": restarted more often than allowed");
  CADRE_HOLDS(generation.saved.stop().collateral_size() <= state::kMaxCollateral &&
                  job.saved.earlier_size() <= state::kMaxEarlier &&
                  job.saved.timeline().generations_size() <= state::kMaxTimeline,
              "job ", name, ": a list has outgrown its bound");
  return absl::OkStatus();
}

absl::Status CheckLive(const std::string& name, const JobView& view) {
  const NodeConnections& connections = view.volatile_state.connections;
  const bool ended = state::HasEnded(view.job.phase());
  for (const auto& [node, connection] : connections.all()) {
    CADRE_HOLDS(ended || view.job.nodes.count(node) == 1, "job ", name, ": ", node,
                " is connected, but was not admitted");
    CADRE_HOLDS(!ended || connection.stream.has_value(), "job ", name, ": ", node,
                " is expected to reconnect though the job has ended");
  }
  CADRE_HOLDS(ended || connections.all().size() == view.job.nodes.size(), "job ", name,
              ": a node has no connection");
  CADRE_HOLDS(view.job.phase() == v1::RUNNING || view.volatile_state.store.waiters() == 0, "job ",
              name, ": a request waits in the store of a generation that does not run");
  CADRE_HOLDS(!view.volatile_state.dirty, "job ", name, ": is still to be advanced after the step");
  RETURN_IF_ERROR(connections.CheckInvariants());
  return view.volatile_state.store.CheckInvariants();
}

}  // namespace

absl::Status CheckJob(const std::string& name, const JobView& view) {
  RETURN_IF_ERROR(CheckGeneration(name, view.job));
  RETURN_IF_ERROR(CheckPhase(name, view.job));
  return CheckLive(name, view);
}

}  // namespace cadre::job
