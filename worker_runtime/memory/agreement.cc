#include "worker_runtime/memory/agreement.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cadre::memory {
namespace {

// Holdings of one step, by rank.
using Holders = std::map<int64_t, std::vector<const Holding*>>;

// The ranks of a node take turns at sending what it holds.
int SenderOf(int rank, int64_t node, const std::vector<int>& nodes) {
  const auto first = std::find(nodes.begin(), nodes.end(), static_cast<int>(node));
  const auto ranks = std::count(first, nodes.end(), static_cast<int>(node));
  return static_cast<int>(first - nodes.begin()) + static_cast<int>(rank % ranks);
}

std::vector<Delivery> Deliveries(const Holders& holders, const std::vector<int>& nodes) {
  std::vector<Delivery> deliveries;
  for (const auto& [rank, found] : holders) {
    const int home = nodes[static_cast<size_t>(rank)];
    const bool is_home = std::any_of(found.begin(), found.end(),
                                     [home](const Holding* held) { return held->node == home; });
    if (is_home) continue;
    const int from = SenderOf(static_cast<int>(rank), found.front()->node, nodes);
    deliveries.push_back({static_cast<int>(rank), from, found.front()->bytes});
  }
  return deliveries;
}

}  // namespace

std::optional<Agreement> Agree(const std::vector<Holding>& holdings,
                               const std::vector<int>& nodes) {
  std::map<std::pair<int64_t, int64_t>, Holders> by_state;  // by generation and step
  for (const Holding& held : holdings) {
    if (held.rank < 0 || held.rank >= static_cast<int64_t>(nodes.size())) continue;
    by_state[{held.generation, held.step}][held.rank].push_back(&held);
  }
  for (auto state = by_state.rbegin(); state != by_state.rend(); ++state) {
    if (state->second.size() != nodes.size()) continue;
    return Agreement{state->first.second, static_cast<uint64_t>(state->first.first),
                     Deliveries(state->second, nodes)};
  }
  return std::nullopt;
}

}  // namespace cadre::memory
