#include "worker_runtime/memory/neighbours.h"

#include <vector>

#include "base/status_matchers.h"

namespace cadre::memory {
namespace {

// Nodes of these sizes: everyone's keeper must know that it keeps that rank's state, and nobody
// else may think so.
void AllAgree(const std::vector<int>& sizes) {
  const int nodes = static_cast<int>(sizes.size());
  std::vector<WorkerPlace> places;
  for (int node = 0; node < nodes; ++node) {
    for (int local = 0; local < sizes[node]; ++local) {
      WorkerPlace place;
      place.rank = static_cast<int>(places.size());
      place.local_rank = local;
      place.local_world_size = sizes[node];
      place.node_rank = node;
      place.nodes = nodes;
      places.push_back(place);
    }
  }
  std::vector<Neighbours> all;
  for (WorkerPlace& place : places) {
    place.world_size = static_cast<int>(places.size());
    all.push_back(NeighboursOf(place, sizes[(place.node_rank + 1) % nodes],
                               sizes[(place.node_rank + nodes - 1) % nodes]));
  }
  std::vector<int> kept_by(places.size(), -1);
  for (const WorkerPlace& place : places) {
    for (const int rank : all[place.rank].kept) {
      EXPECT_EQ(kept_by[rank], -1) << rank;
      kept_by[rank] = place.rank;
      EXPECT_GE(rank, all[place.rank].first_kept);
      EXPECT_LT(rank, all[place.rank].first_kept + all[place.rank].kept_count);
    }
  }
  for (const WorkerPlace& place : places) {
    const int keeper = all[place.rank].keeper;
    EXPECT_EQ(kept_by[place.rank], keeper);
    EXPECT_EQ(places[keeper].node_rank, (place.node_rank + 1) % nodes);
  }
}

TEST(NeighboursTest, TheNextNodeKeepsANodesStates) {
  AllAgree({1, 1});
  AllAgree({2, 2, 2});
  AllAgree({8, 8});
}

TEST(NeighboursTest, NodesMayDifferInSize) {
  AllAgree({1, 4, 2});
  AllAgree({5, 1});
  AllAgree({2, 7, 3, 1});
}

}  // namespace
}  // namespace cadre::memory
