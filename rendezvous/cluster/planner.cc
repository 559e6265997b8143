#include "rendezvous/cluster/planner.h"

#include <utility>

#include "rendezvous/cluster/node_choice.h"
#include "rendezvous/cluster/suitability.h"

namespace cadre::cluster {

Planner::Planner(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                 MonoTime now)
    : nodes_(nodes), now_(now), whole_(nodes.size()) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    index_[nodes[i].name] = i;
    whole_[i] = {nodes[i].cpus, nodes[i].gpus};
  }
  free_ = coming_ = whole_;
  plans_.reserve(jobs.size());
  for (const ScheduleJob& job : jobs) {
    Plan& plan = plans_.emplace_back();
    plan.job = &job;
    plan.held = job.held;
    plan.least = LeastNodes(job);
    plan.unit = std::max<uint32_t>(job.unit, 1);
    for (const HeldShare& held : job.held) {
      plan.active += !held.ending;
      const auto node = index_.find(held.node);
      if (node == index_.end()) continue;
      free_[node->second].Add(held.share, -1);
      if (!held.ending || held.remains) coming_[node->second].Add(held.share, -1);
      if (held.remains) whole_[node->second].Add(held.share, -1);
    }
  }
}

std::optional<Share> Planner::Usable(const Plan& plan, size_t node) const {
  const ScheduleNode& candidate = nodes_[node];
  if (!candidate.closed.empty()) return std::nullopt;
  if (plan.avoids && plan.job->avoid.count(candidate.name) != 0) return std::nullopt;
  if (plan.job->resting.count(candidate.name) != 0) return std::nullopt;
  if (IsBarred(*plan.job, candidate)) return std::nullopt;
  for (const HeldShare& held : plan.held) {
    if (held.node == candidate.name) return std::nullopt;
  }
  return ShareOf(*plan.job, candidate);
}

std::vector<Planner::Need> Planner::Choose(const Plan& plan, const Rooms& rooms,
                                           size_t count) const {
  const ScheduleJob& job = *plan.job;
  const std::string& label = job.pack.empty() ? job.spread_over : job.pack;
  const auto group = [&](size_t node) {
    const auto found = nodes_[node].labels.find(label);
    return found == nodes_[node].labels.end() ? std::string() : found->second;
  };
  std::vector<NodeCandidate> candidates;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    // Every share has a CPU at least, and while jobs wait most nodes are full.
    if (rooms[i].cpus < 1) continue;
    const std::optional<Share> share = Usable(plan, i);
    if (!share.has_value() || !rooms[i].Holds(*share)) continue;
    candidates.push_back({i, group(i), rooms[i].gpus - share->gpus, rooms[i].cpus - share->cpus});
  }
  std::vector<std::string> held;
  for (const HeldShare& share : plan.held) {
    const auto node = index_.find(share.node);
    if (!share.ending && node != index_.end()) held.push_back(group(node->second));
  }
  const NodeLayout layout = label.empty()      ? NodeLayout::kTight
                            : job.pack.empty() ? NodeLayout::kSpread
                                               : NodeLayout::kPacked;
  std::vector<Need> needs;
  for (const size_t node : ChooseNodes(std::move(candidates), held, layout, count)) {
    needs.push_back({node, *ShareOf(job, nodes_[node])});
  }
  return needs;
}

size_t Planner::Fitting(const Plan& plan, const Rooms& rooms) const {
  size_t fitting = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::optional<Share> share = Usable(plan, i);
    fitting += share.has_value() && rooms[i].Holds(*share);
  }
  return fitting;
}

void Planner::Place(Plan* plan, const std::vector<Need>& needs, const std::string& reason) {
  for (const Need& need : needs) {
    free_[need.node].Add(need.share, -1);
    coming_[need.node].Add(need.share, -1);
    plan->held.push_back({nodes_[need.node].name, need.share, false});
    schedule_.place.push_back({plan->job->name, nodes_[need.node].name, need.share, reason});
  }
  plan->active += needs.size();
  plan->placed_now = true;
}

}  // namespace cadre::cluster
