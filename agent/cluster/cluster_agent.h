// The agent of one node of a cluster: registers the node with the server, starts and ends launchers
// as the server orders, and reads their workers' logs. It has no part in the jobs themselves.
#ifndef CADRE_AGENT_CLUSTER_CLUSTER_AGENT_H_
#define CADRE_AGENT_CLUSTER_CLUSTER_AGENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/cluster/part_start.h"
#include "agent/link/server_link.h"
#include "agent/supervisor/client.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

struct ClusterAgentOptions {
  // Without parts.
  v1::AgentJoined node;
  uint64_t incarnation = 0;
  PartStartOptions start;
  // Indices of the GPUs that it gives to parts; as many as `node.gpus`.
  std::vector<uint32_t> gpus;
  // A line for the log.
  std::function<void(const std::string&)> log;
};

// Runs until a signal, which ends all launchers with grace; a second one does at once. Signals
// must be blocked. OK: it was told to end. UNAUTHENTICATED, PERMISSION_DENIED, INVALID_ARGUMENT,
// ALREADY_EXISTS, FAILED_PRECONDITION: the server does not want this node. INTERNAL: the supervisor
// is gone.
absl::Status RunClusterAgent(const ClusterAgentOptions& options,
                             std::unique_ptr<supervisor::Client> supervisor, ServerLink& link);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_CLUSTER_AGENT_H_
