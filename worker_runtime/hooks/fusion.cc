#include "cadre/hooks/fusion.h"

#include <utility>

namespace cadre::hooks {

std::vector<std::vector<size_t>> FusionGroups(Span<const size_t> counts, Span<const size_t> order,
                                              size_t threshold) {
  std::vector<std::vector<size_t>> groups;
  std::vector<size_t> open;
  size_t elements = 0;
  for (const size_t i : order) {
    if (counts[i] > threshold) {
      groups.push_back({i});
      continue;
    }
    open.push_back(i);
    elements += counts[i];
    if (elements <= threshold) continue;
    groups.push_back(std::exchange(open, {}));
    elements = 0;
  }
  if (!open.empty()) groups.push_back(std::move(open));
  return groups;
}

}  // namespace cadre::hooks
