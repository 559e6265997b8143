#include "worker_runtime/backend/member_place.h"

#include <set>

namespace cadre::backend {

WorkerPlace PlaceOfMember(const std::vector<int>& nodes, int own, const WorkerPlace& place) {
  const int ranks = static_cast<int>(nodes.size());
  WorkerPlace member = place;
  member.rank = own;
  member.world_size = ranks;
  std::set<int> seen;
  int node = -1, first = 0;
  bool follow_each_other = true;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 0 || nodes[rank] != nodes[rank - 1]) {
      follow_each_other = seen.insert(nodes[rank]).second && follow_each_other;
      ++node;
      first = rank;
    }
    if (rank == own) {
      member.node_rank = node;
      member.local_rank = rank - first;
    }
    if (node == member.node_rank && rank >= own) member.local_world_size = rank - first + 1;
  }
  member.nodes = node + 1;
  if (!follow_each_other) {
    member.local_rank = 0;
    member.local_world_size = 1;
    member.node_rank = own;
    member.nodes = ranks;
  }
  return member;
}

}  // namespace cadre::backend
