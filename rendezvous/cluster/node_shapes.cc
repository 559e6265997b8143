#include "rendezvous/cluster/node_shapes.h"

#include <optional>
#include <utility>

#include "rendezvous/cluster/suitability.h"

namespace cadre::cluster {

NodeShapes::NodeShapes(const std::vector<ScheduleNode>& nodes,
                       const std::vector<HeldShare>& remains) {
  std::map<std::string, std::pair<int64_t, int64_t>> lost;
  for (const HeldShare& held : remains) {
    lost[held.node].first += held.share.cpus;
    lost[held.node].second += held.share.gpus;
  }
  for (const ScheduleNode& node : nodes) {
    if (!node.closed.empty()) continue;
    const auto found = lost.find(node.name);
    const auto [cpus, gpus] = found == lost.end() ? std::pair<int64_t, int64_t>() : found->second;
    ++shapes_[{node.user, node.cpus, node.gpus, node.cpus - cpus, node.gpus - gpus}];
  }
}

size_t NodeShapes::Fitting(const ScheduleJob& job) const {
  size_t fitting = 0;
  for (const auto& [shape, count] : shapes_) {
    ScheduleNode node;
    int64_t cpus = 0, gpus = 0;
    std::tie(node.user, node.cpus, node.gpus, cpus, gpus) = shape;
    if (IsBarred(job, node)) continue;
    const std::optional<Share> share = ShareOf(job, node);
    if (share.has_value() && cpus >= share->cpus && gpus >= share->gpus) fitting += count;
  }
  return fitting;
}

bool NodeShapes::CanRun(const ScheduleJob& job) const { return Fitting(job) >= LeastNodes(job); }

}  // namespace cadre::cluster
