// Which ranks of a communicator make up a group.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_GROUP_H_
#define CADRE_WORKER_RUNTIME_BACKEND_GROUP_H_

#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"

namespace cadre::backend {

// The ranks that gave the same color, ordered by key and then by rank; empty for a negative color.
// Collective over `communicator`.
Result<std::vector<int>> GroupOf(Communicator& communicator, int color, int key);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_GROUP_H_
