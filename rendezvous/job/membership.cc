// Methods of Job (job.h) by which nodes join, leave and are lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/job/failure.h"
#include "rendezvous/job/formation_decision.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/job_records.h"
#include "rendezvous/job/orders.h"
#include "rendezvous/job/verdict.h"
#include "rendezvous/state/policy.h"
#include "rpc/versions.h"

namespace cadre::job {
namespace {

// Whether a disconnected node has left workers for its next launcher, but this launcher would run
// something else: if it was started by mistake, that would end those workers.
bool WouldReplaceLeftWorkers(const state::Job& job, const v1::Join& join) {
  const auto known = job.nodes.find(join.node());
  if (known == job.nodes.end() || !known->second.node().has_adopt_timeout() || !join.has_spec()) {
    return false;
  }
  saved::Node joining;
  SetRoleAndProgram(job.saved.spec(), join.spec(), &joining);
  return joining.program() != known->second.node().program();
}

// Returns why a disconnected node is lost.
std::string WhyGone(const NodeConnection& connection, absl::Duration adoptable) {
  if (!connection.launcher_end.empty()) return connection.launcher_end;
  // The server cannot distinguish a process that is gone from a broken network.
  return absl::StrCat(connection.restored
                          ? "it has not reconnected since the server was restarted"
                          : "its launcher is gone (killed, crashed, or cut off from the network)",
                      adoptable == absl::ZeroDuration()
                          ? ""
                          : absl::StrCat(", and no new launcher took over its workers within ",
                                         ShortDuration(adoptable)));
}

// Whether the node was silent already when the supposed root cause happened.
bool WasSilentBeforeFailure(const JobView& view, const NodeConnection& connection) {
  const MonoTime failed =
      view.context.clock.LeaseFromRecord(view.job.generation.saved.stop().failed_us());
  if (!connection.stream.has_value()) return connection.gone_since <= failed;
  // It had already missed a renewal.
  return connection.last_heard + view.context.config.lease / 2 < failed;
}

// Returns the order to stop for a node that is no member, and has workers of a generation that goes
// on or went by without it.
v1::ServerMessage MakeStopOfOldGeneration(const std::string& name, const state::Job& job,
                                          const GenerationId& old) {
  v1::ServerMessage stop = step::MessageFor(name, old.number);
  SetGeneration(&stop, old);
  stop.mutable_stop()->set_reason(
      absl::StrCat("generation ", old.number, " went on without this node"));
  *stop.mutable_stop()->mutable_grace() = ToProto(job.policy.stop_grace);
  stop.mutable_stop()->set_fenced(true);
  return stop;
}

}  // namespace

void Job::Join(StreamId stream, const v1::NodeMessage& message) {
  const auto known = state_.nodes.find(message.join().node());
  const bool comes_back =
      known != state_.nodes.end() && known->second.node().incarnation() == message.incarnation();
  if (state::HasEnded(state_.phase()) || comes_back) return Resume(stream, message);
  if (MayJoin(stream, message.join())) Admit(stream, message);
}

bool Job::MayJoin(StreamId stream, const v1::Join& join) {
  const NodeConnection* before = volatile_.connections.Find(join.node());
  if (before != nullptr) {
    if (before->stream.has_value()) {
      out_.Reject(
          stream, absl::StatusCode::kAlreadyExists,
          absl::StrCat("node ", join.node(), " is already in job ", name_, "; give --node-name"));
      return false;
    }
    if (WouldReplaceLeftWorkers(state_, join)) {
      out_.Reject(stream, absl::StatusCode::kInvalidArgument,
                  absl::StrCat("command differs from what node ", join.node(),
                               " ran, whose workers wait to be taken over; start it with that "
                               "command again, or this one with another --node-name"));
      return false;
    }
    // A new incarnation of the agent proves that the old one is gone.
    const std::string why =
        before->launcher_end.empty() ? "its launcher was restarted" : before->launcher_end;
    RemoveNode(join.node(), v1::NODE_LOST, v1::NodeRemoved::STARTED_ANEW, why, absl::OkStatus());
    // The loss takes effect before the node counts as present again.
    while (AdvancePhase()) {
    }
    if (state::HasEnded(state_.phase())) {
      out_.Reject(stream, absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("job ", name_, " has ", EndText(state_.saved.verdict())));
      return false;
    }
  }
  if (state_.slots + join.slots() > state::kMaxSlotsPerJob ||
      state_.nodes.size() >= state::kMaxNodes) {
    out_.Reject(stream, absl::StatusCode::kResourceExhausted,
                absl::StrCat("job ", name_, " has ", Count(state_.nodes.size(), "node"), " with ",
                             Count(state_.slots, "slot"), "; at most ", state::kMaxNodes, " and ",
                             state::kMaxSlotsPerJob, " are allowed"));
    return false;
  }
  return true;
}

void Job::Admit(StreamId stream, const v1::NodeMessage& message) {
  v1::Record record = NodeAdmitted(state_, message);
  record.mutable_node_admitted()->set_at_us(context_.now.micros());
  out_.Commit(std::move(record));
  CADRE_CHECK(state_.nodes.count(message.join().node()) == 1, "job ", name_);
  volatile_.refusal.clear();
  Attach(stream, message.join());
  // The node was declared lost and comes back with workers of a generation that goes on without it.
  if (message.generation() != 0) {
    const GenerationId old = NamedBy(message, context_);
    volatile_.connections.SetOldGeneration(message.join().node(), old);
    out_.SendTo(message.join().node(), MakeStopOfOldGeneration(name_, state_, old));
  }
}

void Job::OnOldWorkersStopped(const std::string& node, const v1::NodeStopped& stopped) {
  // The node now holds this port; it had none to offer while those workers ran.
  if (stopped.held_port() != 0) {
    const GenerationId old = volatile_.connections.Find(node)->old_generation;
    const bool ours = old.server_id == context_.config.server_id;
    out_.Commit(NodeCleared(node, ours ? old.number : 0, stopped.held_port(), context_.now));
  }
  volatile_.connections.SetOldGeneration(node, {});
  MarkDirty(true);
}

void Job::Resume(StreamId stream, const v1::NodeMessage& message) {
  const std::string& node = message.join().node();
  const std::optional<StreamId> old = volatile_.connections.StreamOf(node);
  if (old.has_value()) {
    out_.Close(*old, absl::AbortedError("a newer stream of the same agent replaced this one"));
  }
  Attach(stream, message.join());
  if (state::HasEnded(state_.phase())) return out_.SendTo(node, FinishedMessage(name_, view()));
  const int rank = NodeRankOf(state_, node);
  if (rank < 0) {
    // A restarted server no longer knows that a spare has workers to stop.
    if (message.generation() == 0) return;
    const GenerationId old_generation = NamedBy(message, context_);
    volatile_.connections.SetOldGeneration(node, old_generation);
    return out_.SendTo(node, MakeStopOfOldGeneration(name_, state_, old_generation));
  }
  const state::Generation& generation = state_.generation;
  const saved::Member& member = generation.member(rank);
  v1::ServerMessage order = out_.Message();
  if (state_.phase() == v1::STOPPING && !member.cleared()) {
    *order.mutable_stop() = MakeStop(state_, node);
    return out_.SendTo(node, std::move(order));
  }
  const auto first =
      generation.saved.workers().begin() + static_cast<ptrdiff_t>(member.first_rank());
  const bool unstarted =
      std::find(first, first + member.slots(), saved::RANK_ASSIGNED) != first + member.slots();
  if (state_.phase() == v1::RUNNING && unstarted) {
    *order.mutable_assign() = MakeAssign(state_, rank);
    SetRole(RolePlaces(state_), rank, order.mutable_assign());
    out_.SendTo(node, std::move(order));
  }
}

void Job::Attach(StreamId stream, const v1::Join& join) {
  volatile_.connections.Attach(join.node(), stream, join.strict_fencing(), rpc::VersionIn(join));
  v1::ServerMessage message = out_.Message();
  message.mutable_welcome()->set_server_id(context_.config.server_id);
  *message.mutable_welcome()->mutable_lease() = ToProto(context_.config.lease);
  *message.mutable_welcome()->mutable_spec() = state_.saved.spec();
  *message.mutable_welcome()->mutable_version() = rpc::ThisVersion();
  out_.SendTo(join.node(), std::move(message));
  MarkDirty(true);
}

void Job::EndLeases() {
  while (const std::optional<std::string> lost = volatile_.connections.NextExpired()) {
    const std::string& node = *lost;
    const NodeConnection& connection = *volatile_.connections.Find(node);
    if (state::HasEnded(state_.phase())) {
      // A job that has ended keeps only connections with a stream (BeginLeaving()).
      CADRE_CHECK(connection.stream.has_value(), "job ", name_, ", node ", node);
      out_.Close(*connection.stream,
                 absl::DeadlineExceededError("the job has ended; this stream is not needed"));
      volatile_.connections.Erase(node);
    } else if (connection.stream.has_value()) {
      const std::string silence = ShortDuration(context_.config.lease);
      RemoveNode(node, v1::NODE_LOST, v1::NodeRemoved::SILENT,
                 absl::StrCat("nothing was heard of it for ", silence),
                 absl::DeadlineExceededError(
                     absl::StrCat("nothing was heard of this node for ", silence)));
      cluster_events_.launchers_lost.emplace_back(name_, node);
    } else {
      RemoveNode(
          node, v1::NODE_LOST,
          connection.launcher_end.empty() ? v1::NodeRemoved::GONE : v1::NodeRemoved::LAUNCHER_ENDED,
          WhyGone(connection, FromProto(state_.nodes.at(node).node().adopt_timeout())),
          absl::OkStatus());
    }
  }
}

void Job::RemoveNode(const std::string& node, v1::FailureCause cause, v1::NodeRemoved::How how,
                     const std::string& reason, absl::Status close) {
  CADRE_CHECK(!state::HasEnded(state_.phase()) && volatile_.connections.Find(node) != nullptr,
              "job ", name_, ", node ", node);
  const NodeConnection connection = *volatile_.connections.Find(node);
  const int rank = NodeRankOf(state_, node);
  const uint64_t generation = state_.generation.number();
  // A node whose workers have all succeeded is not missed.
  const bool missed = rank >= 0 && state_.generation.member(rank).succeeded() <
                                       state_.generation.member(rank).slots();
  out_.Commit(NodeRemoved(node, cause, how, reason));
  CADRE_CHECK(state_.nodes.count(node) == 0, "job ", name_, ", node ", node);
  volatile_.store.ForgetNode(node);
  if (connection.stream.has_value()) out_.Close(*connection.stream, std::move(close));
  volatile_.connections.Erase(node);
  out_.Note(absl::StrCat("node ", node, " is out: ", reason));
  MarkDirty(true);
  if (!missed) return;
  const v1::Failure failure = PlainFailure(
      cause, node, generation,
      absl::StrCat("node ", node, cause == v1::PREEMPTED ? " was preempted" : " is lost",
                   " in generation ", generation, ": ", reason));
  if (state_.phase() == v1::RUNNING) return OrderStop(failure.message(), failure);
  const v1::Failure* root = state_.generation.root_cause();
  // Other nodes' workers notice a dead peer before the server notices the dead node.
  if (root != nullptr && root->rank() >= 0 && root->node() != node &&
      WasSilentBeforeFailure(view(), connection)) {
    OrderStop(failure.message(), failure);
  }
}

void Job::OnUnkillableWorker(v1::Failure failure) {
  const std::string node = failure.node();
  const GenerationId generation{context_.config.server_id, state_.generation.number()};
  const v1::Failure* root = state_.generation.root_cause();
  // A hang or a missing start of the same rank followed from what keeps it in the kernel.
  const bool is_cause =
      root == nullptr || (root->rank() == failure.rank() &&
                          (root->cause() == v1::HANG || root->cause() == v1::START_TIMEOUT));
  if (!is_cause && !state::IsOver(state_.generation.worker(failure.rank()))) {
    failure.set_collateral(true);
    out_.Commit(WorkerEnded(state_, failure.rank(), failure, context_.now));
  }
  out_.Commit(NodeRemoved(node, failure.cause(), v1::NodeRemoved::REMAINS, failure.message()));
  volatile_.store.ForgetNode(node);
  volatile_.connections.SetOldGeneration(node, generation, failure.rank() - failure.local_rank());
  volatile_.connections.AddUnkillable(node, failure.local_rank(), failure.message());
  cluster_events_.launchers_lost.emplace_back(name_, node);
  out_.SendTo(node, MakeStopOfOldGeneration(name_, state_, generation));
  out_.Note(absl::StrCat("node ", node, " is out: ", failure.message()));
  MarkDirty(true);
  if (is_cause) OrderStop(failure.message(), failure);
}

}  // namespace cadre::job
