// Which ranks are on which node. Pure.
#ifndef CADRE_WORKER_RUNTIME_HIERARCHICAL_NODE_LAYOUT_H_
#define CADRE_WORKER_RUNTIME_HIERARCHICAL_NODE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadre/result.h"

namespace cadre::hierarchical {

class NodeLayout {
 public:
  // `nodes[r]`: the node of rank r. FAILED_PRECONDITION: ranks are not contiguous per node, or
  // nodes not in order.
  static Result<NodeLayout> Of(const std::vector<int32_t>& nodes);

  int NodeOf(int rank) const;
  // The ranks of a node are those from its first one to before the next node's.
  int FirstRank(int node) const { return first_ranks_[node]; }
  int EndRank(int node) const { return first_ranks_[node + 1]; }

  // By node, the sum over its ranks of counts[rank].
  std::vector<size_t> Sums(const std::vector<size_t>& counts) const;

 private:
  explicit NodeLayout(std::vector<int> first_ranks) : first_ranks_(std::move(first_ranks)) {}

  std::vector<int> first_ranks_;  // by node; the last entry is the number of ranks
};

}  // namespace cadre::hierarchical

#endif  // CADRE_WORKER_RUNTIME_HIERARCHICAL_NODE_LAYOUT_H_
