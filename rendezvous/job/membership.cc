// Methods of Job: nodes come, go and are lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/report.h"
#include "rendezvous/job/status.h"
#include "rendezvous/state/policy.h"
#include "rpc/versions.h"

namespace cadre::job {
namespace {

v1::Record NodeAdmitted(const state::Job& job, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  v1::Record record;
  v1::NodeAdmitted* admitted = record.mutable_node_admitted();
  saved::Node* node = admitted->mutable_node();
  node->set_name(join.node());
  node->set_host(join.host().empty() ? join.node() : join.host());
  node->set_address(join.address());
  node->set_slots(join.slots());
  node->set_incarnation(message.incarnation());
  node->set_wanted_node_rank(join.wanted_node_rank());
  node->set_held_port(join.held_port());
  node->set_master_addr(join.master_addr());
  node->set_master_port(join.master_port());
  if (join.has_versions()) *node->mutable_versions() = join.versions();
  if (join.has_spec()) AddWhatDiffers(job.saved.spec(), join.spec(), node);
  if (join.has_adopt_timeout()) *node->mutable_adopt_timeout() = join.adopt_timeout();
  // One list is enough for the job.
  if (job.saved.expected_nodes().empty()) {
    *admitted->mutable_expected_nodes() = join.expected_nodes();
  }
  admitted->set_part(join.part());
  return record;
}

// Whether the node is away and has left workers for its next launcher, which is to run something
// else: started by mistake it would be the end of them.
bool WouldReplaceLeftWorkers(const state::Job& job, const v1::Join& join) {
  const auto known = job.nodes.find(join.node());
  if (known == job.nodes.end() || !known->second.node().has_adopt_timeout() || !join.has_spec()) {
    return false;
  }
  saved::Node joining;
  AddWhatDiffers(job.saved.spec(), join.spec(), &joining);
  return joining.program() != known->second.node().program();
}

v1::Record NodeRemoved(const std::string& node, v1::FailureCause cause, v1::NodeRemoved::How how,
                       const std::string& reason) {
  v1::Record record;
  record.mutable_node_removed()->set_node(node);
  record.mutable_node_removed()->set_cause(cause);
  record.mutable_node_removed()->set_how(how);
  record.mutable_node_removed()->set_reason(reason);
  return record;
}

// Of a node whose connection ended.
std::string WhyGone(const Connection& connection, absl::Duration adoptable) {
  if (!connection.launcher_end.empty()) return connection.launcher_end;
  // From here a process that is gone and a network that is broken look alike.
  return absl::StrCat(
      connection.restored ? "it has not come back since the server was started anew"
                          : "its launcher is gone (killed, crashed, or cut off from the network)",
      adoptable == absl::ZeroDuration()
          ? ""
          : absl::StrCat(", and nobody took over its workers within ", ShortDuration(adoptable)));
}

// The node was silent before what was taken for the root cause happened.
bool WasSilentBeforeFailure(const View& view, const Connection& connection) {
  const MonoTime failed =
      view.context.clock.LeaseFromRecord(view.job.generation.saved.stop().failed_us());
  if (!connection.stream.has_value()) return connection.gone_since <= failed;
  // It had missed a renewal already.
  return connection.last_heard + view.context.config.lease / 2 < failed;
}

// For a node that is no member, and has workers of a generation that goes on or went by without it.
v1::ServerMessage StopOfOld(const std::string& name, const state::Job& job,
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
  const Connection* before = live_.connections.Find(join.node());
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
    // A new life of the agent is proof that the old one is over.
    const std::string why =
        before->launcher_end.empty() ? "its launcher was started anew" : before->launcher_end;
    RemoveNode(join.node(), v1::NODE_LOST, v1::NodeRemoved::STARTED_ANEW, why, absl::OkStatus());
    // What was lost with it takes effect before the node counts as present again.
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
  live_.refusal.clear();
  Attach(stream, message.join());
  // It was taken for lost and comes back with workers of a generation that goes on without it.
  if (message.generation() != 0) {
    const GenerationId old = NamedBy(message, context_);
    live_.connections.SetOldGeneration(message.join().node(), old);
    out_.SendTo(message.join().node(), StopOfOld(name_, state_, old));
  }
}

void Job::OldWorkersStopped(const std::string& node, const v1::NodeStopped& stopped) {
  // The port it holds now; it had none to give while those workers ran.
  if (stopped.held_port() != 0) {
    const GenerationId old = live_.connections.Find(node)->old_generation;
    const bool ours = old.server_id == context_.config.server_id;
    out_.Commit(NodeCleared(node, ours ? old.number : 0, stopped.held_port(), context_.now));
  }
  live_.connections.SetOldGeneration(node, {});
  Touch(true);
}

void Job::Resume(StreamId stream, const v1::NodeMessage& message) {
  const std::string& node = message.join().node();
  const std::optional<StreamId> old = live_.connections.StreamOf(node);
  if (old.has_value()) {
    out_.Close(*old, absl::AbortedError("a newer stream of the same agent took this one's place"));
  }
  Attach(stream, message.join());
  if (state::HasEnded(state_.phase())) return out_.SendTo(node, FinishedMessage(name_, view()));
  const int rank = NodeRankOf(state_, node);
  if (rank < 0) {
    // A server that was started anew no longer knows that a spare has workers to stop.
    if (message.generation() == 0) return;
    const GenerationId old_generation = NamedBy(message, context_);
    live_.connections.SetOldGeneration(node, old_generation);
    return out_.SendTo(node, StopOfOld(name_, state_, old_generation));
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
  live_.connections.Attach(join.node(), stream, join.strict_fencing(), rpc::VersionIn(join));
  v1::ServerMessage message = out_.Message();
  message.mutable_welcome()->set_server_id(context_.config.server_id);
  *message.mutable_welcome()->mutable_lease() = ToProto(context_.config.lease);
  *message.mutable_welcome()->mutable_spec() = state_.saved.spec();
  *message.mutable_welcome()->mutable_version() = rpc::ThisVersion();
  out_.SendTo(join.node(), std::move(message));
  Touch(true);
}

void Job::EndLeases() {
  while (const std::optional<std::string> lost = live_.connections.NextLost()) {
    const std::string& node = *lost;
    const Connection& connection = *live_.connections.Find(node);
    if (state::HasEnded(state_.phase())) {
      out_.Close(*connection.stream,
                 absl::DeadlineExceededError("the job has ended; this stream is not needed"));
      live_.connections.Erase(node);
    } else if (connection.stream.has_value()) {
      const std::string silence = ShortDuration(context_.config.lease);
      RemoveNode(node, v1::NODE_LOST, v1::NodeRemoved::SILENT,
                 absl::StrCat("nothing was heard of it for ", silence),
                 absl::DeadlineExceededError(
                     absl::StrCat("nothing was heard of this node for ", silence)));
      for_cluster_.launchers_lost.emplace_back(name_, node);
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
  const Connection connection = *live_.connections.Find(node);
  const int rank = NodeRankOf(state_, node);
  const uint64_t generation = state_.generation.number();
  // A node whose workers have all succeeded is not missed.
  const bool missed = rank >= 0 && state_.generation.member(rank).succeeded() <
                                       state_.generation.member(rank).slots();
  out_.Commit(NodeRemoved(node, cause, how, reason));
  live_.store.ForgetNode(node);
  if (connection.stream.has_value()) out_.Close(*connection.stream, std::move(close));
  live_.connections.Erase(node);
  out_.Note(absl::StrCat("node ", node, " is out: ", reason));
  Touch(true);
  if (!missed) return;
  const v1::Failure failure = PlainFailure(
      cause, node, generation,
      absl::StrCat("node ", node, cause == v1::PREEMPTED ? " was preempted" : " is lost",
                   " in generation ", generation, ": ", reason));
  if (state_.phase() == v1::RUNNING) return OrderStop(failure.message(), failure);
  const v1::Failure* root = state_.generation.root_cause();
  // The others' workers notice a dead peer sooner than the server notices a dead node.
  if (root != nullptr && root->rank() >= 0 && root->node() != node &&
      WasSilentBeforeFailure(view(), connection)) {
    OrderStop(failure.message(), failure);
  }
}

void Job::NodeRemains(v1::Failure failure) {
  const std::string node = failure.node();
  const GenerationId generation{context_.config.server_id, state_.generation.number()};
  const v1::Failure* root = state_.generation.root_cause();
  // That it hung, or did not start, followed from what keeps it in the kernel.
  const bool is_cause =
      root == nullptr || (root->rank() == failure.rank() &&
                          (root->cause() == v1::HANG || root->cause() == v1::START_TIMEOUT));
  if (!is_cause && !state::IsOver(state_.generation.worker(failure.rank()))) {
    failure.set_collateral(true);
    out_.Commit(WorkerEnded(state_, failure.rank(), failure, context_.now));
  }
  out_.Commit(NodeRemoved(node, failure.cause(), v1::NodeRemoved::REMAINS, failure.message()));
  live_.store.ForgetNode(node);
  live_.connections.SetOldGeneration(node, generation, failure.rank() - failure.local_rank());
  live_.connections.AddRemains(node, failure.local_rank(), failure.message());
  for_cluster_.launchers_lost.emplace_back(name_, node);
  out_.SendTo(node, StopOfOld(name_, state_, generation));
  out_.Note(absl::StrCat("node ", node, " is out: ", failure.message()));
  Touch(true);
  if (is_cause) OrderStop(failure.message(), failure);
}

}  // namespace cadre::job
