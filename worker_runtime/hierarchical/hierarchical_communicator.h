// Collectives over several nodes, each with several ranks: within a node through shared memory,
// between the nodes through one rank of each, the leader, over sockets.
#ifndef CADRE_WORKER_RUNTIME_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::hierarchical {

// All ranks call it the same number of times with the same name; `worker` must outlive the call,
// not the communicator. Nodes may have different numbers of ranks; ranks are contiguous per node.
// The operations' errors are those of the two backends, and say whether they count ranks within the
// node or leaders.
Result<std::unique_ptr<Communicator>> ConnectHierarchical(Worker& worker,
                                                          const CommunicatorOptions& options);

}  // namespace cadre::hierarchical

#endif  // CADRE_WORKER_RUNTIME_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
