#include "rendezvous/cluster/parts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/state/policy.h"
#include "rpc/versions.h"

namespace cadre::cluster {
namespace {

constexpr size_t kMaxTriedTextBytes = 160;

// "a process of job j outlives SIGKILL: ...".
std::string RemainsText(const state::State& state, uint64_t part, const std::string& text) {
  const auto found = state.cluster.parts.find(part);
  return absl::StrCat("a process of ",
                      found == state.cluster.parts.end()
                          ? "an earlier job"
                          : absl::StrCat("job ", found->second.part().job()),
                      " ", text);
}

}  // namespace

const state::Job* FindJob(const state::State& state, const std::string& name) {
  const auto found = state.jobs.find(name);
  return found == state.jobs.end() ? nullptr : &found->second;
}

bool IsOver(const state::Job* job) { return job == nullptr || state::HasEnded(job->phase()); }

bool IsUnstarted(const state::Job& job) {
  return job.phase() == v1::GATHERING && job.saved.generations() == 0;
}

std::vector<saved::PlacedPart> PartsOn(const state::State& state, const std::string& node) {
  std::vector<saved::PlacedPart> parts;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.part().node() == node) parts.push_back(part);
  }
  return parts;
}

bool IsLastPart(const state::State& state, const v1::Part& part) {
  const auto& parts = state.cluster.parts;
  return std::none_of(parts.begin(), parts.end(), [&](const auto& other) {
    return other.first != part.id() && other.second.part().job() == part.job();
  });
}

absl::Status CheckLauncher(const state::State& state, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  const std::string& name = message.job();
  const state::Job* job = FindJob(state, name);
  const bool over = IsOver(job);
  if (join.part() == 0) {
    // An ended one's name stays its user's.
    if (job == nullptr || job->user().empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was submitted to the cluster by ", job->user(),
        over ? "" : ", and the cluster chooses its nodes", "; give this one another name"));
  }
  const auto part = state.cluster.parts.find(join.part());
  const bool its = part != state.cluster.parts.end() && part->second.part().job() == name &&
                   part->second.part().node() == join.node();
  const saved::Node* node = nullptr;
  if (job != nullptr && job->nodes.count(join.node()) != 0) {
    node = &job->nodes.at(join.node()).node();
  }
  if (!over && its && (!part->second.taken_back() || node != nullptr)) return absl::OkStatus();
  // A launcher that was away hears how its job ended, even where its part counts no more by now.
  const bool was_in_it = node != nullptr && node->incarnation() == message.incarnation();
  const bool returns = was_in_it || (its && message.generation() != 0);
  if (job != nullptr && over && returns) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("job ", OneLine(name, state::kMaxJobNameBytes),
                                                    " has no part ", join.part(), " on node ",
                                                    join.node()));
}

absl::Status CheckPartToken(const Agents& agents, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  const Agent* agent = agents.Find(join.node());
  const bool gives_others = agent != nullptr && rpc::IsSince(agent->version, rpc::kPartTokenSince);
  if (!join.caller().part_token_before() || !gives_others) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the token of part ", join.part(),
                   " is of an earlier version of Cadre than the agent of node ",
                   OneLine(join.node(), state::kMaxNodeTextBytes)));
}

std::string LaunchersAwaited(const state::State& state, const state::Job& job) {
  std::vector<std::string> nodes;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.taken_back() || part.part().job() != job.name()) continue;
    if (job.nodes.count(part.part().node()) == 0) nodes.push_back(part.part().node());
  }
  if (nodes.empty()) return "";
  return absl::StrCat(nodes.size() == 1 ? "its launcher on " : "its launchers on ",
                      FirstFew(nodes, nodes.size()), " to begin");
}

std::string NodesTried(const state::Job& job) {
  std::vector<std::string> tried;
  for (const v1::AvoidedNode& avoided : job.saved.submission().avoided()) {
    tried.push_back(
        absl::StrCat(avoided.node(), " (", Shortened(avoided.reason(), kMaxTriedTextBytes), ")"));
  }
  return FirstFew(tried, tried.size());
}

std::string WhatRemains(const state::State& state, const Agents& agents) {
  std::vector<std::string> texts;
  for (const auto& [node, parts] : agents.remains()) {
    for (const auto& [part, text] : parts) {
      texts.push_back(absl::StrCat("on ", node, " ", RemainsText(state, part, text)));
    }
  }
  return FirstFew(texts, texts.size());
}

std::vector<v1::ClusterNodeStatus> NodeStatuses(const state::State& state, const Agents& agents) {
  std::map<std::string, std::vector<v1::Part>> parts;
  for (const auto& [id, part] : state.cluster.parts) {
    parts[part.part().node()].push_back(part.part());
  }
  std::vector<v1::ClusterNodeStatus> all;
  for (const auto& [name, node] : state.cluster.nodes) {
    v1::ClusterNodeStatus& status = all.emplace_back();
    status.set_name(name);
    status.set_user(node.user());
    status.set_cpus(node.cpus());
    status.set_gpus(node.gpus());
    *status.mutable_labels() = node.labels();
    status.set_drained(node.drained());
    status.set_drain_reason(node.drain_reason());
    status.set_connected(agents.IsConnected(name));
    const Agent* agent = agents.Find(name);
    if (agent != nullptr) status.set_leftovers(agent->leftovers.size());
    if (status.connected()) status.set_version(rpc::OtherVersionText(agent->version));
    for (v1::Part& part : parts[name]) *status.add_parts() = std::move(part);
    const auto remains = agents.remains().find(name);
    if (remains == agents.remains().end()) continue;
    for (const auto& [part, text] : remains->second) {
      status.add_remains(RemainsText(state, part, text));
    }
  }
  return all;
}

}  // namespace cadre::cluster
