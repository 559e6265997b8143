#include "worker_runtime/memory/neighbours.h"

namespace cadre::memory {

Neighbours NeighboursOf(const WorkerPlace& place, int next_size, int previous_size) {
  const int first = place.rank - place.local_rank;
  const bool is_last = place.node_rank + 1 == place.nodes;
  const int first_of_next = is_last ? 0 : first + place.local_world_size;
  Neighbours neighbours;
  neighbours.keeper = first_of_next + place.local_rank % next_size;
  neighbours.first_kept = (place.node_rank == 0 ? place.world_size : first) - previous_size;
  neighbours.kept_count = previous_size;
  for (int local = place.local_rank; local < previous_size; local += place.local_world_size) {
    neighbours.kept.push_back(neighbours.first_kept + local);
  }
  return neighbours;
}

}  // namespace cadre::memory
