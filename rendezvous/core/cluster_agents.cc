// Agents of the cluster's nodes come, report and are lost.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/policy.h"

namespace cadre {
namespace {

constexpr int kMaxLabels = 64;
constexpr uint32_t kMaxCpusPerNode = 65536;
// A job that has never begun is tried so often: when it ends before it begins on so many nodes, it
// is hardly all of them.
constexpr uint32_t kFailedStartsMax = 8;
constexpr size_t kMaxEndTextBytes = 512;
constexpr size_t kMaxTriedTextBytes = 160;

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (text.size() <= kMaxNodeTextBytes && !HasControlCharacters(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", Quoted(text), " is not valid: at most ",
                                                 kMaxNodeTextBytes,
                                                 " bytes without control characters are allowed"));
}

absl::Status CheckAgent(const v1::AgentJoined& agent) {
  absl::Status good = CheckNodeName(agent.node());
  if (good.ok()) good = CheckText("user", agent.user());
  for (const auto& [name, value] : agent.labels()) {
    if (good.ok()) good = CheckText("label", name);
    if (good.ok()) good = CheckText("label", value);
  }
  if (!good.ok()) return good;
  if (agent.labels_size() > kMaxLabels || agent.cpus() < 1 || agent.cpus() > kMaxCpusPerNode ||
      agent.gpus() > kMaxSlotsPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", agent.node(), " has ", Count(agent.cpus(), "CPU"), ", ",
                     Count(agent.gpus(), "GPU"), " and ", Count(agent.labels_size(), "label"),
                     "; 1 to ", kMaxCpusPerNode, ", at most ", kMaxSlotsPerNode, " and at most ",
                     kMaxLabels, " are allowed"));
  }
  return absl::OkStatus();
}

bool SameNode(const v1::ClusterNodeStatus& known, const v1::AgentJoined& agent) {
  return known.user() == agent.user() && known.cpus() == agent.cpus() &&
         known.gpus() == agent.gpus() && known.labels_size() == agent.labels_size() &&
         std::all_of(known.labels().begin(), known.labels().end(), [&](const auto& label) {
           const auto found = agent.labels().find(label.first);
           return found != agent.labels().end() && found->second == label.second;
         });
}

std::string LauncherEnd(const std::string& how) {
  return absl::StartsWith(how, "its launcher") ? how : absl::StrCat("its launcher ended: ", how);
}

}  // namespace

void Core::Impl::OnAgentSaid(StreamId stream, const v1::NodeMessage& message) {
  const v1::AgentReport& report = message.agent();
  const auto found = agent_streams.find(stream);
  if (found == agent_streams.end()) {
    if (report.has_joined() && sessions.count(stream) == 0) return OnAgentJoined(stream, message);
    return Close(stream, absl::InvalidArgumentError(
                             "what an agent says comes on a stream that begins with AgentJoined"));
  }
  const std::string node = found->second;
  agents[node].last_heard = now;
  if (report.has_ended()) return OnPartReport(node, report.ended());
  if (report.leaving()) return OnAgentLeaving(node);
}

bool Core::Impl::MayJoinCluster(StreamId stream, const v1::NodeMessage& message) {
  const v1::AgentJoined& agent = message.agent().joined();
  const auto reject = [&](absl::StatusCode code, absl::string_view text) {
    Reject(stream, "", code, text);
    return false;
  };
  const absl::Status good = CheckAgent(agent);
  if (!good.ok()) return reject(good.code(), good.message());
  if (!config.only_job.empty()) {
    return reject(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("this endpoint is served by a launcher of job ", config.only_job,
                               " and ends with it; start 'cadre server'"));
  }
  const auto known = agents.find(agent.node());
  if (known != agents.end() && known->second.stream.has_value() &&
      known->second.incarnation != message.incarnation()) {
    return reject(absl::StatusCode::kAlreadyExists,
                  absl::StrCat("node ", agent.node(), " has an agent already; give --node-name"));
  }
  if (state.cluster.nodes.count(agent.node()) != 0) return true;
  if (state.cluster.nodes.size() >= kMaxNodes) {
    return reject(absl::StatusCode::kResourceExhausted,
                  absl::StrCat("the cluster has ", kMaxNodes, " nodes already"));
  }
  for (const auto& [name, node] : state.cluster.nodes) {
    if (!absl::EqualsIgnoreCase(name, agent.node())) continue;
    return reject(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("node name ", agent.node(), " differs only in case from that of node ", name,
                     ", which the cluster has; give --node-name"));
  }
  return true;
}

void Core::Impl::OnAgentJoined(StreamId stream, const v1::NodeMessage& message) {
  if (!MayJoinCluster(stream, message)) return;
  const v1::AgentJoined& joined = message.agent().joined();
  const std::string& node = joined.node();
  AgentLink& agent = agents[node];
  if (agent.stream.has_value()) {
    agent_streams.erase(*agent.stream);
    Close(*agent.stream,
          absl::AbortedError("a newer stream of the same agent took this one's place"));
  }
  const auto found = state.cluster.nodes.find(node);
  if (found == state.cluster.nodes.end() || !SameNode(found->second, joined)) {
    v1::ClusterNodeStatus known;
    if (found != state.cluster.nodes.end()) known = found->second;
    known.set_name(node);
    known.set_user(joined.user());
    known.set_cpus(joined.cpus());
    known.set_gpus(joined.gpus());
    *known.mutable_labels() = joined.labels();
    v1::Record record;
    *record.mutable_cluster_node_set()->mutable_node() = std::move(known);
    Commit(std::move(record));
    Note("", absl::StrCat("node ", node, " of the cluster: ", Count(joined.cpus(), "CPU"), ", ",
                          Count(joined.gpus(), "GPU")));
  }
  agent.stream = stream;
  agent.incarnation = message.incarnation();
  agent.last_heard = now;
  agent.strange.clear();
  agent_streams[stream] = node;
  SetAgentTimer(node, now + config.lease);
  v1::ServerMessage welcome = NewMessage("", 0);
  welcome.mutable_welcome()->set_server_id(config.server_id);
  *welcome.mutable_welcome()->mutable_lease() = ToProto(config.lease);
  Send(stream, std::move(welcome));
  const std::set<uint64_t> runs(joined.parts().begin(), joined.parts().end());
  std::vector<PartState> here;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.part.node() == node) here.push_back(part);
  }
  for (const uint64_t id : runs) {
    const auto part = state.cluster.parts.find(id);
    if (part != state.cluster.parts.end() && part->second.part.node() == node) continue;
    agent.strange.insert(id);
    PartState unknown;
    unknown.part.set_id(id);
    unknown.part.set_node(node);
    SendStop(unknown);
  }
  for (const PartState& part : here) ComparePart(part, runs.count(part.part.id()) != 0, stream);
  cluster_changed = true;
}

void Core::Impl::ComparePart(const PartState& part, bool runs, StreamId stream) {
  if (!part.taken_back) {
    if (!runs) SendStart(part);
    return;
  }
  if (runs) return SendStop(part);
  v1::PartReport gone;
  gone.set_id(part.part.id());
  OnPartReport(agent_streams.at(stream), gone);
}

void Core::Impl::OnPartReport(const std::string& node, const v1::PartReport& report) {
  cluster_changed = true;
  agents[node].strange.erase(report.id());
  const auto found = state.cluster.parts.find(report.id());
  if (found == state.cluster.parts.end() || found->second.part.node() != node) return;
  const PartState part = found->second;
  const std::string& name = part.part.job();
  JobState* job = FindJob(name);
  const bool unasked = !part.taken_back && job != nullptr && !HasEnded(job->phase);
  const std::string how = OneLine(report.text(), kMaxEndTextBytes);
  v1::Record record;
  record.mutable_part_ended()->set_id(report.id());
  if (unasked) {
    record.mutable_part_ended()->set_avoid(true);
    record.mutable_part_ended()->set_reason(how);
    record.mutable_part_ended()->set_unfit(!part.joined && report.blame() == v1::BLAME_NODE);
  }
  Commit(std::move(record));
  if (!unasked) return;
  const std::string text =
      absl::StrCat(part.joined ? "its part on node " : "it could not begin on node ", node,
                   part.joined ? " ended unasked: " : ": ", how);
  Note(name, text);
  Touch(name, true);
  if (job->nodes.count(node) != 0) lives[name].links[node].launcher_end = LauncherEnd(how);
  if (job->generations_announced > 0) return;
  if (report.blame() == v1::BLAME_JOB) return EndUnstarted(name, text, false);
  if (job->failed_starts >= kFailedStartsMax) {
    EndUnstarted(name,
                 absl::StrCat("it was tried ", job->failed_starts, " times: ", NodesTried(*job)),
                 true);
  }
}

std::string Core::Impl::NodesTried(const JobState& job) const {
  std::vector<std::string> tried;
  for (const auto& [node, avoided] : job.avoid) {
    tried.push_back(absl::StrCat(node, " (", Shortened(avoided.reason(), kMaxTriedTextBytes), ")"));
  }
  return FirstFew(tried, tried.size());
}

void Core::Impl::EndUnstarted(const std::string& name, const std::string& why, bool try_later) {
  const v1::Failure failure = PlainFailure(v1::EXEC_FAILED, "", 0, why);
  EndJob(name, FindJob(name), v1::FAILED, try_later ? kExitTryLater : kExitBadSpec, why, failure);
}

void Core::Impl::OnAgentGone(StreamId stream) {
  const auto found = agent_streams.find(stream);
  if (found == agent_streams.end()) return;
  const std::string node = found->second;
  agent_streams.erase(found);
  AgentLink& agent = agents[node];
  agent.stream.reset();
  agent.last_heard = now;
  SetAgentTimer(node, now + config.lease);
  cluster_changed = true;
}

void Core::Impl::OnAgentLeaving(const std::string& node) {
  EndPartsOf(node);
  AgentLink& agent = agents[node];
  agent_streams.erase(*agent.stream);
  Close(*agent.stream, absl::OkStatus());
  SetAgentTimer(node, MonoTime::Never());
  agents.erase(node);
  Note("", absl::StrCat("node ", node, " has left the cluster"));
  // What a person said of it is kept.
  if (state.cluster.nodes[node].drained()) return;
  v1::Record record;
  record.mutable_cluster_node_gone()->set_node(node);
  Commit(std::move(record));
}

void Core::Impl::OnAgentTimer(const std::string& node) {
  AgentLink& agent = agents[node];
  const MonoTime lost = agent.last_heard + config.lease;
  if (lost > now) return SetAgentTimer(node, lost);
  if (agent.stream.has_value()) {
    agent_streams.erase(*agent.stream);
    Close(*agent.stream, absl::DeadlineExceededError(absl::StrCat(
                             "nothing was heard of this agent for ", ShortDuration(config.lease))));
  }
  SetAgentTimer(node, MonoTime::Never());
  agents.erase(node);
  Note("", absl::StrCat("the agent of node ", node, " is lost; its parts of jobs count no more"));
  EndPartsOf(node);
}

void Core::Impl::EndPartsOf(const std::string& node) {
  std::vector<uint64_t> ended;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.part.node() == node) ended.push_back(id);
  }
  for (const uint64_t id : ended) {
    v1::Record record;
    record.mutable_part_ended()->set_id(id);
    Commit(std::move(record));
  }
  cluster_changed = true;
}

void Core::Impl::SetAgentTimer(const std::string& node, MonoTime at) {
  AgentLink& agent = agents[node];
  if (agent.timer != MonoTime::Never()) agent_timers.erase({agent.timer, node});
  if (at != MonoTime::Never()) agent_timers.insert({at, node});
  agent.timer = at;
}

void Core::Impl::SendToAgent(const std::string& node, v1::AgentOrder order) {
  const auto agent = agents.find(node);
  // One that is away hears it when it comes back.
  if (agent == agents.end() || !agent->second.stream.has_value()) return;
  v1::ServerMessage message = NewMessage("", 0);
  *message.mutable_agent() = std::move(order);
  Send(*agent->second.stream, std::move(message));
}

void Core::Impl::SendStart(const PartState& part) {
  const JobState* job = FindJob(part.part.job());
  if (job == nullptr) return;
  v1::AgentOrder order;
  *order.mutable_start()->mutable_part() = part.part;
  *order.mutable_start()->mutable_spec() = job->spec;
  order.mutable_start()->set_user(job->user);
  for (const auto& [id, other] : state.cluster.parts) {
    if (other.part.job() == part.part.job() && !other.taken_back) {
      order.mutable_start()->add_nodes(other.part.node());
    }
  }
  SendToAgent(part.part.node(), std::move(order));
}

void Core::Impl::SendStop(const PartState& part) {
  const JobState* job = FindJob(part.part.job());
  v1::AgentOrder order;
  order.mutable_stop()->set_id(part.part.id());
  // The launchers of a job that is over have been told, and end by themselves.
  const bool over = job == nullptr || HasEnded(job->phase);
  *order.mutable_stop()->mutable_after() = ToProto(over ? config.stop_margin : absl::Duration());
  *order.mutable_stop()->mutable_grace() =
      ToProto((job == nullptr ? Policy() : job->policy).stop_grace + config.stop_margin);
  SendToAgent(part.part.node(), std::move(order));
}

}  // namespace cadre
