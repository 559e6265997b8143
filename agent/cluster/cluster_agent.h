// The agent of one node of a cluster: registers the node with the server, starts and stops
// launchers as the server orders, and reads their workers' logs. It does not take part in the jobs
// themselves.
#ifndef CADRE_AGENT_CLUSTER_CLUSTER_AGENT_H_
#define CADRE_AGENT_CLUSTER_CLUSTER_AGENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/cluster/allocation_launcher.h"
#include "agent/link/server_link.h"
#include "agent/supervisor/client.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

struct ClusterAgentOptions {
  // Its list of running allocations is left empty.
  v1::AgentJoined node;
  uint64_t incarnation = 0;
  LauncherOptions start;
  // Indices of the GPUs that this node gives to allocations; as many as `node.gpus`.
  std::vector<uint32_t> gpus;
  // Receives lines for the agent's log.
  std::function<void(const std::string&)> log;
};

// Runs until a signal, which stops all launchers with grace; it leaves the cluster when they have
// ended. A second signal ends them at once.
// Signals must be blocked. OK: a signal ended it. UNAUTHENTICATED, PERMISSION_DENIED,
// INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION: the server refuses this node. INTERNAL:
// the supervisor is gone.
absl::Status RunClusterAgent(const ClusterAgentOptions& options,
                             std::unique_ptr<supervisor::Client> supervisor, ServerLink& link);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_CLUSTER_AGENT_H_
