#include "rendezvous/cluster/agents.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/state/policy.h"
#include "rpc/node_memory.h"
#include "rpc/versions.h"

namespace cadre::cluster {

const Agent* Agents::Find(const std::string& node) const {
  const auto found = agents_.find(node);
  return found == agents_.end() ? nullptr : &found->second;
}

bool Agents::IsConnected(const std::string& node) const {
  const Agent* agent = Find(node);
  return agent != nullptr && agent->stream.has_value();
}

const std::string* Agents::NodeOf(StreamId stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : &found->second;
}

void Agents::Expect(const std::string& node, MonoTime now) {
  Agent& agent = agents_[node];
  agent.last_heard = now;
  agent.expected = true;
  ++expected_;
  SetTimer(node, now + lease_);
}

void Agents::Connect(const std::string& node, StreamId stream, uint64_t incarnation,
                     const std::set<uint64_t>& runs, MonoTime now) {
  Agent& agent = agents_[node];
  if (agent.stream.has_value()) streams_.erase(*agent.stream);
  streams_[stream] = node;
  expected_ -= std::exchange(agent.expected, false);
  agent.stream = stream;
  agent.incarnation = incarnation;
  agent.last_heard = now;
  agent.leftovers.clear();
  agent.closing = false;
  ForgetUnkillableExcept(node, runs);
  SetTimer(node, now + lease_);
}

void Agents::SetVersion(const std::string& node, const v1::Version& version) {
  agents_.at(node).version = version;
}

void Agents::Disconnect(StreamId stream, MonoTime now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  const std::string node = found->second;
  streams_.erase(found);
  agents_.at(node).stream.reset();
  agents_.at(node).last_heard = now;
  SetTimer(node, now + lease_);
}

void Agents::RenewLease(const std::string& node, MonoTime now) {
  agents_.at(node).last_heard = now;
}

void Agents::AddLeftover(const std::string& node, uint64_t allocation) {
  agents_.at(node).leftovers.insert(allocation);
}

void Agents::SetClosing(const std::string& node) { agents_.at(node).closing = true; }

bool Agents::HasUnkillable(const std::string& node, uint64_t allocation) const {
  const auto found = unkillable_.find(node);
  return found != unkillable_.end() && found->second.count(allocation) != 0;
}

void Agents::AddUnkillable(const std::string& node, uint64_t allocation, const std::string& text) {
  unkillable_[node][allocation] = text;
}

void Agents::ForgetUnkillableExcept(const std::string& node, const std::set<uint64_t>& runs) {
  const auto found = unkillable_.find(node);
  if (found == unkillable_.end()) return;
  std::map<uint64_t, std::string>& allocations = found->second;
  for (auto allocation = allocations.begin(); allocation != allocations.end();) {
    allocation =
        runs.count(allocation->first) != 0 ? std::next(allocation) : allocations.erase(allocation);
  }
  if (allocations.empty()) unkillable_.erase(found);
}

void Agents::OnAllocationEnded(const std::string& node, uint64_t allocation) {
  agents_.at(node).leftovers.erase(allocation);
  const auto found = unkillable_.find(node);
  if (found == unkillable_.end()) return;
  found->second.erase(allocation);
  if (found->second.empty()) unkillable_.erase(found);
}

void Agents::Erase(const std::string& node) {
  unkillable_.erase(node);
  SetTimer(node, MonoTime::Never());
  const auto found = agents_.find(node);
  expected_ -= found->second.expected;
  if (found->second.stream.has_value()) streams_.erase(*found->second.stream);
  agents_.erase(found);
}

std::optional<std::string> Agents::NextExpired(const step::LeaseClock& clock) {
  while (NextDeadline() <= clock.lease_now()) {
    const std::string node = timers_.begin()->second;
    const Agent& agent = agents_.at(node);
    const MonoTime lost = clock.ExpiresAt(agent.last_heard + lease_, !agent.stream.has_value());
    if (lost <= clock.lease_now()) return node;
    // The lease was renewed, or is extended because the host was late or could admit no agent.
    SetTimer(node, lost);
  }
  return std::nullopt;
}

MonoTime Agents::NextDeadline() const {
  return timers_.empty() ? MonoTime::Never() : timers_.begin()->first;
}

void Agents::AwaitAbsent(MonoTime now) {
  for (auto& [node, agent] : agents_) {
    if (!agent.stream.has_value()) agent.last_heard = now;
  }
}

void Agents::SetTimer(const std::string& node, MonoTime at) {
  Agent& agent = agents_.at(node);
  if (agent.timer != MonoTime::Never()) timers_.erase({agent.timer, node});
  if (at != MonoTime::Never()) timers_.insert({at, node});
  agent.timer = at;
}

namespace {

constexpr int kMaxLabels = 64;

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (text.size() <= state::kMaxNodeTextBytes && !HasControlCharacters(text))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", Quoted(text), " is not valid: at most ",
                                                 state::kMaxNodeTextBytes,
                                                 " bytes without control characters are allowed"));
}

}  // namespace

absl::Status CheckAgent(const v1::AgentJoined& agent) {
  absl::Status good = state::CheckNodeName(agent.node());
  if (good.ok()) good = CheckText("user", agent.user());
  for (const auto& [name, value] : agent.labels()) {
    if (good.ok()) good = CheckText("label", name);
    if (good.ok()) good = CheckText("label", value);
  }
  if (!good.ok()) return good;
  if (agent.labels_size() > kMaxLabels || agent.cpus() < 1 || agent.cpus() > kMaxCpusPerNode ||
      agent.gpus() > state::kMaxSlotsPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", agent.node(), " has ", Count(agent.cpus(), "CPU"), ", ",
                     Count(agent.gpus(), "GPU"), " and ", Count(agent.labels_size(), "label"),
                     "; 1 to ", kMaxCpusPerNode, ", at most ", state::kMaxSlotsPerNode,
                     " and at most ", kMaxLabels, " are allowed"));
  }
  if (agent.memory() > rpc::kMaxNodeMemory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", agent.node(), " has ", SizeText(agent.memory()), " of memory; at most ",
        SizeText(rpc::kMaxNodeMemory), " are allowed; give --memory"));
  }
  return rpc::CheckVersions("the server", rpc::ThisVersion(), "this node", rpc::VersionIn(agent));
}

absl::Status CheckNewNode(const std::string& node, const state::Cluster& cluster) {
  if (cluster.nodes.count(node) != 0) return absl::OkStatus();
  if (cluster.nodes.size() >= state::kMaxNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cluster has ", state::kMaxNodes, " nodes already"));
  }
  for (const auto& [name, known] : cluster.nodes) {
    if (!absl::EqualsIgnoreCase(name, node)) continue;
    return absl::AlreadyExistsError(absl::StrCat("node name ", node,
                                                 " differs only in case from that of node ", name,
                                                 ", which the cluster has; give --node-name"));
  }
  return absl::OkStatus();
}

bool SameNode(const saved::ClusterNode& known, const v1::AgentJoined& agent) {
  return known.user() == agent.user() && known.cpus() == agent.cpus() &&
         known.gpus() == agent.gpus() && known.memory() == agent.memory() &&
         known.labels_size() == agent.labels_size() &&
         std::all_of(known.labels().begin(), known.labels().end(), [&](const auto& label) {
           const auto found = agent.labels().find(label.first);
           return found != agent.labels().end() && found->second == label.second;
         });
}

}  // namespace cadre::cluster
