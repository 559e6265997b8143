// Nodes come, renew and leave.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/policy.h"

namespace cadre {
namespace {

bool IsReadyLink(const Link& link) {
  return link.stream.has_value() && !link.old_generation.exists();
}

// Changes a link and keeps the job's counts of links right.
template <typename Change>
void ChangeLink(Live* live, Link* link, Change change) {
  live->open -= link->stream.has_value();
  live->ready -= IsReadyLink(*link);
  change(link);
  live->open += link->stream.has_value();
  live->ready += IsReadyLink(*link);
}

// Whether the Join comes from a life of an agent that took part in the run that is over.
bool IsOfEndedJob(const JobState* job, const v1::NodeMessage& message) {
  if (job == nullptr || !HasEnded(job->phase)) return false;
  if (message.generation() != 0) return true;
  const auto node = job->nodes.find(message.join().node());
  return node != job->nodes.end() && node->second.incarnation == message.incarnation();
}

}  // namespace

void Core::Impl::OnNodeSaid(const NodeSaid& said) {
  const v1::NodeMessage& message = said.message;
  // The host may still have had this in its queue when it was told to close the stream.
  if (closing.count(said.stream) != 0) return;
  if (message.has_agent() || agent_streams.count(said.stream) != 0) {
    return OnAgentSaid(said.stream, message);
  }
  const auto found = sessions.find(said.stream);
  if (found == sessions.end()) {
    if (message.has_join()) return OnJoin(said.stream, message);
    return Close(said.stream,
                 absl::InvalidArgumentError("the first message of a stream must be a Join"));
  }
  const Session session = found->second;
  if (message.has_join() || message.job() != session.job ||
      message.incarnation() != session.incarnation) {
    sessions.erase(found);
    Detach(session);
    return Close(
        said.stream,
        absl::InvalidArgumentError(
            message.has_join() ? "a stream carries one Join"
                               : "job or incarnation differs from those of the stream's Join"));
  }
  Live& live = lives[session.job];
  live.links[session.node].last_heard = now;
  JobState* job = FindJob(session.job);
  if (message.has_store()) {
    return OnStoreRequest(session.job, keyspace::Asker{0, session.node}, message.store());
  }
  if (HasEnded(job->phase)) return;
  switch (message.body_case()) {
    case v1::NodeMessage::kWorkerStarted:
    case v1::NodeMessage::kWorkerExited:
    case v1::NodeMessage::kWorkerGaveUp:
    case v1::NodeMessage::kNodeStopped:
    case v1::NodeMessage::kProgress:
    case v1::NodeMessage::kEvidence:
      return OnGenerationEvent(said.stream, message);
    case v1::NodeMessage::kLeave:
      return OnLeave(session, message.leave());
    case v1::NodeMessage::kCancel:
      return CancelJob(session.job, message.cancel().reason(), message.cancel().signal(),
                       message.cancel().cause() == v1::PREEMPTED ? v1::PREEMPTED : v1::CANCELLED);
    case v1::NodeMessage::kRenew:
      // An answer that cannot go out would only pile up.
      if (message.renew().number() == 0 || !can_save) return;
      return SendRenewed(said.stream, session.job, message.renew().number());
    case v1::NodeMessage::kJoin:
    case v1::NodeMessage::kStore:
    case v1::NodeMessage::kAgent:
      return;
    case v1::NodeMessage::BODY_NOT_SET:
      // A newer agent may say what this server does not know yet.
      return Note(session.job, absl::StrCat("node ", session.node, " sent an unknown message"));
  }
}

void Core::Impl::OnGenerationEvent(StreamId stream, const v1::NodeMessage& message) {
  const Session session = sessions[stream];
  JobState* job = FindJob(session.job);
  Live& live = lives[session.job];
  Link& link = live.links[session.node];
  const GenerationId named = NamedBy(message);
  const uint64_t generation = named.number;
  const bool ours = named.server_id == config.server_id;
  if (named.exists() && named == link.old_generation) {
    if (!message.has_node_stopped()) return;
    // The port it holds now; it had none to give while those workers ran.
    if (message.node_stopped().held_port() != 0) {
      v1::Record record = NewRecord(session.job);
      if (ours) record.mutable_node_cleared()->set_generation(generation);
      record.mutable_node_cleared()->set_node(session.node);
      record.mutable_node_cleared()->set_held_port(message.node_stopped().held_port());
      record.mutable_node_cleared()->set_at_us(now.micros());
      Commit(std::move(record));
    }
    ChangeLink(&live, &link, [](Link* changed) { changed->old_generation = {}; });
    return Touch(session.job, true);
  }
  if (ours && generation > job->generation.number) {
    sessions.erase(stream);
    Detach(session);
    return Close(stream, absl::InvalidArgumentError(absl::StrCat(
                             "generation ", generation, " has not begun; the current one is ",
                             job->generation.number)));
  }
  if (!ours || generation < job->generation.number || NodeRankOf(*job, session.node) < 0) {
    return Note(session.job, absl::StrCat("ignored what node ", session.node,
                                          " says of generation ", generation));
  }
  if (message.has_worker_started()) return OnWorkerStarted(session, message.worker_started());
  if (message.has_worker_exited()) return OnWorkerExited(session, message.worker_exited());
  if (message.has_worker_gave_up()) return OnWorkerGaveUp(session, message.worker_gave_up());
  if (message.has_evidence()) return OnEvidence(session, message.evidence());
  if (message.has_progress()) {
    if (job->phase != v1::RUNNING) return;
    live.progress.Note(*job, session.node, message.progress(), now);
    live.progressed = true;
    return Touch(session.job, false);
  }
  OnNodeStopped(session, generation, message.node_stopped());
}

void Core::Impl::OnJoin(StreamId stream, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  const std::string& name = join.spec().name();
  absl::Status valid = CheckSpec(join.spec());
  if (valid.ok()) valid = CheckJoin(join);
  if (valid.ok() && message.job() != name) {
    valid = absl::InvalidArgumentError(absl::StrCat("the message is for job ",
                                                    OneLine(message.job(), kMaxJobNameBytes),
                                                    ", its spec for ", name));
  }
  if (!valid.ok()) {
    const std::string shown = IsJobName(message.job()) ? message.job() : "";
    return Reject(stream, shown, valid.code(), std::string(valid.message()));
  }
  // First of all: whatever follows tells it of the job, an ended one's spec and verdict too.
  if (!MayTakePart(stream, name, message)) return;
  // It was away when the job ended, or the server was: it must not begin the job anew.
  if (IsOfEndedJob(FindJob(name), message)) return Resume(stream, name, message);
  if (!PrepareJob(stream, name, join)) return;
  const auto& nodes = FindJob(name)->nodes;
  const auto found = nodes.find(join.node());
  if (found != nodes.end() && found->second.incarnation == message.incarnation()) {
    return Resume(stream, name, message);
  }
  if (!MayJoin(stream, name, join)) return;
  Admit(stream, name, message);
}

bool Core::Impl::PrepareJob(StreamId stream, const std::string& name, const v1::Join& join) {
  if (!config.only_job.empty() && name != config.only_job) {
    Reject(stream, name, absl::StatusCode::kFailedPrecondition,
           absl::StrCat("this endpoint is served by a launcher of job ", config.only_job,
                        " and ends with it; use another port for job ", name,
                        ", or 'cadre server' for several jobs"));
    return false;
  }
  const JobState* job = FindJob(name);
  if (job != nullptr && !HasEnded(job->phase)) {
    const absl::Status same = CheckSameJob(job->spec, join.spec());
    if (same.ok()) return true;
    lives[name].refusal = absl::StrCat("node ", OneLine(join.node(), kMaxNodeTextBytes),
                                       " was refused: ", same.message());
    Touch(name, true);
    Reject(stream, name, same.code(), std::string(same.message()));
    return false;
  }
  if (job != nullptr && lives[name].open > 0) {
    Reject(stream, name, absl::StatusCode::kFailedPrecondition,
           absl::StrCat("job ", name, " has ended (", job->verdict->message(),
                        "); its last nodes are still leaving"));
    return false;
  }
  const bool full = state.jobs.size() - state.ended_jobs.size() >= kMaxLiveJobs;
  if (full || state.by_user.Live("") >= kMaxLiveJobsOfNobody) {
    Reject(stream, name, absl::StatusCode::kResourceExhausted,
           absl::StrCat("the server has ", full ? kMaxLiveJobs : kMaxLiveJobsOfNobody,
                        full ? " jobs already" : " jobs already that nobody submitted"));
    return false;
  }
  DropLive(name);
  v1::Record record = NewRecord(name);
  *record.mutable_job_created()->mutable_spec() = join.spec();
  record.mutable_job_created()->set_at_us(now.micros());
  record.mutable_job_created()->set_run(NameOfNewRun());
  Commit(std::move(record));
  Note(name, absl::StrCat("created by node ", join.node()));
  return true;
}

bool Core::Impl::MayJoin(StreamId stream, const std::string& name, const v1::Join& join) {
  const JobState& job = *FindJob(name);
  const auto found = job.nodes.find(join.node());
  if (found != job.nodes.end()) {
    const Link& link = lives[name].links[join.node()];
    if (link.stream.has_value()) {
      Reject(stream, name, absl::StatusCode::kAlreadyExists,
             absl::StrCat("node ", join.node(), " is already in job ", name, "; give --node-name"));
      return false;
    }
    // A new life of the agent is proof that the old one is over.
    const std::string why =
        link.launcher_end.empty() ? "its launcher was started anew" : link.launcher_end;
    RemoveNode(name, join.node(), v1::NODE_LOST, why, absl::OkStatus());
    // What was lost with it takes effect before the node counts as present again.
    while (Advance(name, FindJob(name), &lives[name])) {
    }
    if (HasEnded(job.phase)) {
      Reject(stream, name, absl::StatusCode::kFailedPrecondition,
             absl::StrCat("job ", name, " has ended: ", job.verdict->message()));
      return false;
    }
  }
  if (job.slots + join.slots() > kMaxSlotsPerJob || job.nodes.size() >= kMaxNodes) {
    Reject(stream, name, absl::StatusCode::kResourceExhausted,
           absl::StrCat("job ", name, " has ", Count(job.nodes.size(), "node"), " with ",
                        Count(job.slots, "slot"), "; at most ", kMaxNodes, " and ", kMaxSlotsPerJob,
                        " are allowed"));
    return false;
  }
  return true;
}

void Core::Impl::Admit(StreamId stream, const std::string& name, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  v1::Record record = NewRecord(name);
  v1::NodeAdmitted* admitted = record.mutable_node_admitted();
  admitted->set_node(join.node());
  admitted->set_host(join.host().empty() ? join.node() : join.host());
  admitted->set_address(join.address());
  admitted->set_slots(join.slots());
  admitted->set_incarnation(message.incarnation());
  admitted->set_wanted_node_rank(join.wanted_node_rank());
  admitted->set_held_port(join.held_port());
  // One list is enough for the job.
  if (FindJob(name)->expected_nodes.empty()) {
    *admitted->mutable_expected_nodes() = join.expected_nodes();
  }
  admitted->set_master_addr(join.master_addr());
  admitted->set_master_port(join.master_port());
  if (join.has_adopt_timeout()) *admitted->mutable_adopt_timeout() = join.adopt_timeout();
  admitted->set_part(join.part());
  admitted->set_at_us(now.micros());
  Commit(std::move(record));
  lives[name].refusal.clear();
  Attach(stream, name, join.node(), message.incarnation());
  lives[name].links[join.node()].strict_fencing = join.strict_fencing();
  SendWelcome(stream, name);
  // It was taken for lost and comes back with workers of a generation that goes on without it.
  if (message.generation() != 0) StopOldWorkers(stream, name, join.node(), NamedBy(message));
}

void Core::Impl::StopOldWorkers(StreamId stream, const std::string& name, const std::string& node,
                                const GenerationId& old) {
  Live& live = lives[name];
  ChangeLink(&live, &live.links[node], [&](Link* link) { link->old_generation = old; });
  v1::ServerMessage stop = NewMessage(name, old.number);
  SetGeneration(&stop, old);
  stop.mutable_stop()->set_reason(
      absl::StrCat("generation ", old.number, " went on without this node"));
  *stop.mutable_stop()->mutable_grace() = ToProto(FindJob(name)->policy.stop_grace);
  stop.mutable_stop()->set_fenced(true);
  Send(stream, std::move(stop));
}

void Core::Impl::Resume(StreamId stream, const std::string& name, const v1::NodeMessage& message) {
  const std::string& node = message.join().node();
  Link& link = lives[name].links[node];
  if (link.stream.has_value()) {
    const StreamId old = *link.stream;
    sessions.erase(old);
    Close(old, absl::AbortedError("a newer stream of the same agent took this one's place"));
  }
  Attach(stream, name, node, message.incarnation());
  link.strict_fencing = message.join().strict_fencing();
  SendWelcome(stream, name);
  const JobState& job = *FindJob(name);
  if (HasEnded(job.phase)) return Send(stream, FinishedMessage(name, job));
  const int rank = NodeRankOf(job, node);
  if (rank < 0) {
    // A server that was started anew no longer knows that a spare has workers to stop.
    if (message.generation() != 0) StopOldWorkers(stream, name, node, NamedBy(message));
    return;
  }
  const GenerationState& generation = job.generation;
  const MemberState& member = generation.members[rank];
  v1::ServerMessage order = NewMessage(name, generation.number);
  if (job.phase == v1::STOPPING && !member.cleared) {
    *order.mutable_stop() = MakeStop(job, node);
    return Send(stream, std::move(order));
  }
  const auto first = generation.workers.begin() + member.first_rank;
  const bool unstarted =
      std::find(first, first + member.slots, WorkerPhase::kAssigned) != first + member.slots;
  if (job.phase == v1::RUNNING && unstarted) {
    *order.mutable_assign() = MakeAssign(job, rank);
    Send(stream, std::move(order));
  }
}

void Core::Impl::Attach(StreamId stream, const std::string& name, const std::string& node,
                        uint64_t incarnation) {
  sessions[stream] = {name, node, incarnation};
  Live& live = lives[name];
  Link& link = live.links[node];
  ChangeLink(&live, &link, [&](Link* changed) {
    changed->stream = stream;
    changed->last_heard = now;
    changed->restored = false;
    changed->launcher_end.clear();
  });
  SetNodeTimer(name, node, &link, LostAt(link));
  Touch(name, true);
}

void Core::Impl::SendWelcome(StreamId stream, const std::string& name) {
  const JobState& job = *FindJob(name);
  v1::ServerMessage message = NewMessage(name, job.generation.number);
  message.mutable_welcome()->set_server_id(config.server_id);
  *message.mutable_welcome()->mutable_lease() = ToProto(config.lease);
  *message.mutable_welcome()->mutable_spec() = job.spec;
  Send(stream, std::move(message));
}

void Core::Impl::SendRenewed(StreamId stream, const std::string& name, uint64_t number) {
  v1::ServerMessage message = NewMessage(name, FindJob(name)->generation.number);
  message.mutable_renewed()->set_number(number);
  Send(stream, std::move(message));
}

void Core::Impl::Reject(StreamId stream, const std::string& job, absl::StatusCode code,
                        absl::string_view message) {
  const std::string text = Shortened(message, kMaxMessageBytes);
  v1::ServerMessage rejected = NewMessage(job, 0);
  rejected.mutable_rejected()->set_code(static_cast<int>(code));
  rejected.mutable_rejected()->set_message(text);
  Send(stream, std::move(rejected));
  Note(job, absl::StrCat("rejected a Join: ", text));
  Close(stream, absl::Status(code, text));
}

void Core::Impl::OnStreamClosed(StreamId stream) {
  closing.erase(stream);
  const auto found = sessions.find(stream);
  if (found == sessions.end()) return OnAgentGone(stream);
  const Session session = found->second;
  sessions.erase(found);
  Detach(session);
}

void Core::Impl::Detach(const Session& session) {
  Live& live = lives[session.job];
  Link& link = live.links[session.node];
  ChangeLink(&live, &link, [](Link* changed) { changed->stream.reset(); });
  if (HasEnded(FindJob(session.job)->phase)) return EraseLink(session.job, &live, session.node);
  link.gone_since = now;
  // Its workers go on for that long, and whoever adopts them must still reach this server.
  link.gone_limit =
      config.reconnect_grace + FindJob(session.job)->nodes.at(session.node).adopt_timeout;
  if (link.strict_fencing) {
    // Its workers may run until shortly before the lease ends.
    link.gone_limit = std::max(link.gone_limit, link.last_heard + config.lease - now);
  }
  SetNodeTimer(session.job, session.node, &link, LostAt(link));
  Touch(session.job, false);
}

void Core::Impl::EraseLink(const std::string& name, Live* live, const std::string& node) {
  Link& link = live->links[node];
  ChangeLink(live, &link, [](Link* changed) { changed->stream.reset(); });
  SetNodeTimer(name, node, &link, MonoTime::Never());
  live->links.erase(node);
}

void Core::Impl::OnLeave(const Session& session, const v1::Leave& leave) {
  const bool known = leave.cause() == v1::PREEMPTED || leave.cause() == v1::CANCELLED;
  const std::string reason = OneLine(leave.reason(), kMaxNodeTextBytes);
  RemoveNode(session.job, session.node, known ? leave.cause() : v1::NODE_LOST,
             reason.empty() ? "it left" : absl::StrCat("it left: ", reason), absl::OkStatus());
}

void Core::Impl::Close(StreamId stream, absl::Status status) {
  out->close.push_back({stream, std::move(status)});
  closing.insert(stream);
  // Numbers grow, so the first one is the oldest.
  if (closing.size() > kMaxClosingStreams) closing.erase(closing.begin());
}

}  // namespace cadre
