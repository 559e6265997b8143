// Questions about the parts of jobs in the state. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_PARTS_H_
#define CADRE_RENDEZVOUS_CLUSTER_PARTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

// Null: no such job.
const state::Job* FindJob(const state::State& state, const std::string& name);
// It has ended, or is forgotten.
bool IsOver(const state::Job* job);
// It gathers, and no generation of it has formed yet.
bool IsUnstarted(const state::Job& job);

// Those of the node.
std::vector<saved::PlacedPart> PartsOn(const state::State& state, const std::string& node);
// Its job has no other.
bool IsLastPart(const state::State& state, const v1::Part& part);

// FAILED_PRECONDITION: why the launcher of a Join may neither take part in the job as what it says
// it is, nor hear how it ended. A user's token opens streams without a part (host/permission.h), a
// launcher's token those of its own part, so a job that was submitted shows itself to its own
// launchers only.
absl::Status CheckLauncher(const state::State& state, const v1::NodeMessage& message);
// UNAUTHENTICATED: its launcher has a token of the version before, and the node's agent is of one
// that gives better ones.
absl::Status CheckPartToken(const Agents& agents, const v1::NodeMessage& message);

// Launchers that have not joined yet, as what is waited for. Empty: none.
std::string LaunchersAwaited(const state::State& state, const state::Job& job);

// "n0 (no user alice), n1 (...)".
std::string NodesTried(const state::Job& job);

// Processes that SIGKILL does not end: "on n1 a process of job j outlives SIGKILL: ...". Empty:
// none.
std::string WhatRemains(const state::State& state, const Agents& agents);

// The cluster's nodes with their parts, by name.
std::vector<v1::ClusterNodeStatus> NodeStatuses(const state::State& state, const Agents& agents);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_PARTS_H_
