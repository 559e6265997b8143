#include "rendezvous/cluster/parts.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::cluster {
namespace {

constexpr size_t kMaxTriedTextBytes = 160;

}  // namespace

const JobState* FindJob(const State& state, const std::string& name) {
  const auto found = state.jobs.find(name);
  return found == state.jobs.end() ? nullptr : &found->second;
}

bool IsOver(const JobState* job) { return job == nullptr || HasEnded(job->phase); }

bool IsUnstarted(const JobState& job) {
  return job.phase == v1::GATHERING && job.generations_announced == 0;
}

absl::Status CheckLauncher(const State& state, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  const std::string& name = message.job();
  const JobState* job = FindJob(state, name);
  const bool over = IsOver(job);
  if (join.part() == 0) {
    // An ended one's name stays its user's.
    if (job == nullptr || job->user.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was submitted to the cluster by ", job->user,
        over ? "" : ", and the cluster chooses its nodes", "; give this one another name"));
  }
  const auto part = state.cluster.parts.find(join.part());
  const bool its = part != state.cluster.parts.end() && part->second.part.job() == name &&
                   part->second.part.node() == join.node();
  const NodeState* node = nullptr;
  if (job != nullptr && job->nodes.count(join.node()) != 0) node = &job->nodes.at(join.node());
  if (!over && its && (!part->second.taken_back || node != nullptr)) return absl::OkStatus();
  // A launcher that was away hears how its job ended, even where its part counts no more by now.
  const bool was_in_it = node != nullptr && node->incarnation == message.incarnation();
  if (over && (was_in_it || (its && message.generation() != 0))) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job ", name, " has no part on node ", join.node(), " any more"));
}

std::string LaunchersAwaited(const State& state, const JobState& job) {
  std::vector<std::string> nodes;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.taken_back || part.part.job() != job.spec.name()) continue;
    if (job.nodes.count(part.part.node()) == 0) nodes.push_back(part.part.node());
  }
  if (nodes.empty()) return "";
  return absl::StrCat(nodes.size() == 1 ? "its launcher on " : "its launchers on ",
                      FirstFew(nodes, nodes.size()), " to begin");
}

std::string NodesTried(const JobState& job) {
  std::vector<std::string> tried;
  for (const auto& [node, avoided] : job.avoid) {
    tried.push_back(absl::StrCat(node, " (", Shortened(avoided.reason(), kMaxTriedTextBytes), ")"));
  }
  return FirstFew(tried, tried.size());
}

std::vector<v1::ClusterNodeStatus> NodeStatuses(const State& state, const Agents& agents) {
  std::map<std::string, v1::ClusterNodeStatus> nodes = state.cluster.nodes;
  for (const auto& [id, part] : state.cluster.parts) {
    const auto node = nodes.find(part.part.node());
    if (node != nodes.end()) *node->second.add_parts() = part.part;
  }
  std::vector<v1::ClusterNodeStatus> all;
  for (auto& [name, node] : nodes) {
    node.set_connected(agents.IsConnected(name));
    const Agent* agent = agents.Find(name);
    if (agent != nullptr) node.set_leftovers(agent->leftovers.size());
    all.push_back(std::move(node));
  }
  return all;
}

}  // namespace cadre::cluster
