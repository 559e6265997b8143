// Where a rank stands in a group of some ranks of the world. Pure.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_MEMBER_PLACE_H_
#define CADRE_WORKER_RUNTIME_BACKEND_MEMBER_PLACE_H_

#include <vector>

#include "cadre/worker.h"

namespace cadre::backend {

// `nodes[m]`: the node in the world of the group's rank m. The place of rank `own`, which has
// `place` in the world: nodes are counted anew, in the order in which they appear. Where the ranks
// of some node do not follow each other, every rank counts as a node of its own, as sockets take
// it.
WorkerPlace PlaceOfMember(const std::vector<int>& nodes, int own, const WorkerPlace& place);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_MEMBER_PLACE_H_
