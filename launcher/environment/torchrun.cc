// MASTER_ADDR and friends, as the Kubernetes training operator and many sbatch scripts set them.
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "launcher/environment/identity.h"

namespace cadre::launcher {

absl::StatusOr<std::optional<Identity>> ReadTorchrun(const EnvironmentMap& environment) {
  Identity identity;
  identity.source = "MASTER_ADDR";
  identity.endpoint_host = TextIn(environment, "MASTER_ADDR");
  // A worker of another launcher has LOCAL_RANK; its variables speak of workers, not of nodes.
  if (identity.endpoint_host.empty() || !TextIn(environment, "LOCAL_RANK").empty()) {
    return std::optional<Identity>();
  }
  ASSIGN_OR_RETURN(std::optional<uint32_t> rank, NumberIn(environment, "NODE_RANK"));
  ASSIGN_OR_RETURN(std::optional<uint32_t> nodes, NumberIn(environment, "NNODES"));
  if (!rank.has_value()) {
    ASSIGN_OR_RETURN(rank, NumberIn(environment, "RANK"));
  }
  if (!nodes.has_value()) {
    ASSIGN_OR_RETURN(nodes, NumberIn(environment, "WORLD_SIZE"));
  }
  if (!nodes.has_value()) return std::optional<Identity>();
  ASSIGN_OR_RETURN(const std::optional<uint32_t> port, NumberIn(environment, "MASTER_PORT"));
  if (port.has_value() && (*port == 0 || *port > 65535)) {
    return absl::InvalidArgumentError(
        "environment variable MASTER_PORT: expected a port from 1 to 65535");
  }
  identity.endpoint_port = static_cast<int>(port.value_or(0));
  identity.nodes = *nodes;
  if (rank.has_value()) identity.node_rank = static_cast<int>(*rank);
  return std::optional<Identity>(std::move(identity));
}

}  // namespace cadre::launcher
