#include "rendezvous/cluster/agent_check.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/state/policy.h"
#include "rpc/versions.h"

namespace cadre::cluster {
namespace {

constexpr int kMaxLabels = 64;
constexpr uint32_t kMaxCpusPerNode = 65536;

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
         known.gpus() == agent.gpus() && known.labels_size() == agent.labels_size() &&
         std::all_of(known.labels().begin(), known.labels().end(), [&](const auto& label) {
           const auto found = agent.labels().find(label.first);
           return found != agent.labels().end() && found->second == label.second;
         });
}

}  // namespace cadre::cluster
