// Whether an agent's description of its node is taken. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_AGENT_CHECK_H_
#define CADRE_RENDEZVOUS_CLUSTER_AGENT_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

// INVALID_ARGUMENT. UNAVAILABLE: its version of Cadre and this one do not work together.
absl::Status CheckAgent(const v1::AgentJoined& agent);

// A node that the cluster has is no new one. ALREADY_EXISTS: another one's name differs in case
// alone. RESOURCE_EXHAUSTED.
absl::Status CheckNewNode(const std::string& node, const state::Cluster& cluster);

// What is known of the node is what its agent says.
bool SameNode(const saved::ClusterNode& known, const v1::AgentJoined& agent);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_AGENT_CHECK_H_
