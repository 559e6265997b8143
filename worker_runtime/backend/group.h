// Groups of a communicator's ranks: which ranks form a group, a rank's place in it, and the
// broadcast by which a rank's bytes reach all ranks.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_GROUP_H_
#define CADRE_WORKER_RUNTIME_BACKEND_GROUP_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::backend {

// The ranks that passed the same color, ordered by key and then by rank; empty for a negative
// color. Collective over `communicator`.
Result<std::vector<int>> GroupOf(Communicator& communicator, int color, int key);

// `nodes[m]` is the node, in the world, of the group's rank m. Returns the place of rank `own`,
// whose place in the world is `place`. Pure. Nodes are renumbered in the order in which they
// appear. If the ranks of some node are not contiguous, every rank counts as a node of its own,
// which the sockets backend supports.
WorkerPlace PlaceOfMember(const std::vector<int>& nodes, int own, const WorkerPlace& place);

// Collective: returns the `bytes` of rank `root`, whose size the others need not know. They are
// sent in pieces, each with `timeout`. DATA_LOSS: there are more than `most` bytes.
Result<std::string> BroadcastBytes(Communicator& communicator, std::string bytes, int root,
                                   int64_t most, std::chrono::nanoseconds timeout);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_GROUP_H_
