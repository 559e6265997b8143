#include "rendezvous/cluster/node_choice.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace cadre::cluster {
namespace {

using Groups = std::map<std::string, std::vector<size_t>>;

// Takes the first `count` nodes of a group.
void Take(size_t count, std::vector<size_t>* group, std::vector<size_t>* chosen) {
  chosen->insert(chosen->end(), group->begin(), group->begin() + count);
  group->erase(group->begin(), group->begin() + count);
}

std::vector<size_t> Spread(Groups groups, std::map<std::string, size_t> used, size_t count) {
  std::vector<size_t> chosen;
  while (chosen.size() < count) {
    // The least used group, of these the one with most room.
    Groups::iterator best = groups.end();
    for (auto it = groups.begin(); it != groups.end(); ++it) {
      if (it->second.empty()) continue;
      if (best == groups.end() || std::make_pair(used[it->first], best->second.size()) <
                                      std::make_pair(used[best->first], it->second.size())) {
        best = it;
      }
    }
    ++used[best->first];
    Take(1, &best->second, &chosen);
  }
  return chosen;
}

std::vector<size_t> Pack(Groups groups, const std::map<std::string, size_t>& used, size_t count) {
  std::vector<size_t> chosen;
  while (chosen.size() < count) {
    const size_t missing = count - chosen.size();
    // One in use comes first, then the smallest that holds all that is missing, then the largest.
    const auto rank = [&](const Groups::value_type& group) {
      const bool enough = group.second.size() >= missing;
      const int64_t size = static_cast<int64_t>(group.second.size());
      return std::make_tuple(used.count(group.first) == 0, !enough, enough ? size : -size);
    };
    Groups::iterator best = groups.end();
    for (auto it = groups.begin(); it != groups.end(); ++it) {
      if (it->second.empty()) continue;
      if (best == groups.end() || rank(*it) < rank(*best)) best = it;
    }
    Take(std::min(missing, best->second.size()), &best->second, &chosen);
  }
  return chosen;
}

}  // namespace

std::vector<size_t> ChooseNodes(std::vector<NodeCandidate> candidates,
                                const std::vector<std::string>& held, NodeLayout layout,
                                size_t count) {
  if (candidates.size() < count) return {};
  std::sort(candidates.begin(), candidates.end(),
            [](const NodeCandidate& a, const NodeCandidate& b) {
              return std::tie(a.spare_gpus, a.spare_cpus, a.node) <
                     std::tie(b.spare_gpus, b.spare_cpus, b.node);
            });
  Groups groups;
  for (const NodeCandidate& candidate : candidates) {
    groups[layout == NodeLayout::kTight ? "" : candidate.group].push_back(candidate.node);
  }
  std::map<std::string, size_t> used;
  for (const std::string& group : held) ++used[group];
  if (layout == NodeLayout::kPacked) return Pack(std::move(groups), used, count);
  return Spread(std::move(groups), std::move(used), count);
}

}  // namespace cadre::cluster
