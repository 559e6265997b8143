#include "worker_runtime/hierarchical/node_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::hierarchical {

Result<NodeLayout> NodeLayout::Of(const std::vector<int32_t>& nodes) {
  std::vector<int> first_ranks = {0};
  for (size_t rank = 1; rank < nodes.size(); ++rank) {
    if (nodes[rank] == nodes[rank - 1]) continue;
    if (nodes[rank] != nodes[rank - 1] + 1) {
      return FailedPreconditionError(absl::StrCat("ranks are not contiguous per node: rank ", rank,
                                                  " is on node ", nodes[rank], ", rank ", rank - 1,
                                                  " on node ", nodes[rank - 1]));
    }
    first_ranks.push_back(static_cast<int>(rank));
  }
  first_ranks.push_back(static_cast<int>(nodes.size()));
  return NodeLayout(std::move(first_ranks));
}

int NodeLayout::NodeOf(int rank) const {
  const auto next = std::upper_bound(first_ranks_.begin(), first_ranks_.end(), rank);
  return static_cast<int>(next - first_ranks_.begin()) - 1;
}

std::vector<size_t> NodeLayout::Sums(const std::vector<size_t>& counts) const {
  std::vector<size_t> sums;
  for (size_t node = 0; node + 1 < first_ranks_.size(); ++node) {
    sums.push_back(std::accumulate(counts.begin() + first_ranks_[node],
                                   counts.begin() + first_ranks_[node + 1], size_t{0}));
  }
  return sums;
}

}  // namespace cadre::hierarchical
