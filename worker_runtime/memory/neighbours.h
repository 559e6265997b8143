// Which rank of the next node keeps a copy of this one's state, and whose this one keeps. Pure.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_NEIGHBOURS_H_
#define CADRE_WORKER_RUNTIME_MEMORY_NEIGHBOURS_H_

#include <vector>

#include "cadre/worker.h"

namespace cadre::memory {

struct Neighbours {
  // To whom this rank sends.
  int keeper = 0;
  // Who sends to this rank.
  std::vector<int> kept;
  // Who sends to this node: `kept_count` ranks from there on.
  int first_kept = 0;
  int kept_count = 0;
};

// The next node keeps a node's states, the first one the last one's; a rank's is kept by the one
// with its local rank, in turns where there are fewer. For more than one node; the sizes are those
// of the nodes behind and before this one.
Neighbours NeighboursOf(const WorkerPlace& place, int next_size, int previous_size);

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_NEIGHBOURS_H_
