// Hybrid sharding: a FullySharded model is sharded over the ranks of each node only, and every node
// has a replica of it. Parameters are gathered within nodes; only gradients cross nodes, each
// rank's part once. After PyTorch's HYBRID_SHARD (arXiv 2304.11277).
//
//   CADRE_ASSIGN_OR_RETURN(
//       auto groups, cadre::nn::SplitByNode(*world.communicator,
//                                           world.worker->place().local_world_size));
//   cadre::nn::FullyShardedOptions options;
//   options.replicas = groups.replicas.get();
//   CADRE_ASSIGN_OR_RETURN(auto model, cadre::nn::FullySharded<NetImpl>::Create(
//                                          net.ptr(), {"blocks.0"}, *groups.shards, options));
#ifndef CADRE_TORCH_HYBRID_SHARDING_H_
#define CADRE_TORCH_HYBRID_SHARDING_H_

#include <chrono>
#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::nn {

// Neither is null. Both must outlive the model.
struct HybridGroups {
  // The ranks that share one replica.
  std::unique_ptr<Communicator> shards;
  // The ranks that have the same part, one in each replica, in the order of the replicas.
  std::unique_ptr<Communicator> replicas;
};

// Collective: splits a world whose ranks are contiguous per node, `local_size` on each; a fraction
// of a node, or several nodes together, can be a replica as well. Waits. The groups may outlive the
// world.
//   INVALID_ARGUMENT, on all ranks: local_size differs, or does not divide the number of ranks
Result<HybridGroups> SplitByNode(Communicator& world, int local_size,
                                 std::chrono::nanoseconds timeout = std::chrono::minutes(11));

// Collective over both; `replicas` is null if there is only one replica. INVALID_ARGUMENT, naming
// the rank and both sizes: ranks of one replica are in different replicas according to `replicas`,
// or its ranks have different parts.
Status CheckGroupsFit(Communicator& shards, Communicator* replicas,
                      std::chrono::nanoseconds timeout);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_HYBRID_SHARDING_H_
