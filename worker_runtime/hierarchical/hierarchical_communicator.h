// Collectives over several nodes with several ranks each: through shared memory within a node, and
// over sockets between nodes, by one rank of each, the leader.
#ifndef CADRE_WORKER_RUNTIME_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::hierarchical {

// Which ranks are on which node. Pure.
class NodeLayout {
 public:
  // `nodes[r]` is the node of rank r. FAILED_PRECONDITION: ranks are not contiguous per node, or
  // nodes are not in order.
  static Result<NodeLayout> Of(const std::vector<int32_t>& nodes);

  int NodeOf(int rank) const;
  // A node's ranks are FirstRank() to EndRank() - 1.
  int FirstRank(int node) const { return first_ranks_[node]; }
  int EndRank(int node) const { return first_ranks_[node + 1]; }

  // For each node, the sum of counts[rank] over its ranks.
  std::vector<size_t> Sums(const std::vector<size_t>& counts) const;

 private:
  explicit NodeLayout(std::vector<int> first_ranks) : first_ranks_(std::move(first_ranks)) {}

  std::vector<int> first_ranks_;  // by node; the last entry is the number of ranks
};

// All ranks call it the same number of times with the same name; `worker` must outlive the call,
// not the communicator. Nodes may have different numbers of ranks; ranks are contiguous per node.
// Operations return the errors of the two backends, which say whether they count ranks within the
// node or leaders.
Result<std::unique_ptr<Communicator>> ConnectHierarchical(Worker& worker,
                                                          const CommunicatorOptions& options);

}  // namespace cadre::hierarchical

#endif  // CADRE_WORKER_RUNTIME_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
