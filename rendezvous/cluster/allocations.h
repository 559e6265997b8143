// The allocations of jobs: a job has one on each node that it was given, and the agent there runs a
// launcher for it. On the wire and in records an allocation is called a part. Here are the
// questions about them: what a job waits for, and where the log of a worker is. Which launchers may
// join as an allocation is in launcher_check.h. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_ALLOCATIONS_H_
#define CADRE_RENDEZVOUS_CLUSTER_ALLOCATIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre::cluster {

// Returns null if there is no such job.
const state::Job* FindJob(const state::State& state, const std::string& name);
// Whether the job has ended or was dropped from the state.
bool IsOver(const state::Job* job);
// Whether the job gathers and no generation of it has formed yet.
bool IsUnstarted(const state::Job& job);

// Returns the allocations on the node.
std::vector<saved::PlacedPart> AllocationsOn(const state::State& state, const std::string& node);
// Whether the allocation's job has no other allocation.
bool IsLastAllocation(const state::State& state, const v1::Part& allocation);

// Whether the batch job has an allocation in which its script runs or is to run.
bool RunsScript(const state::State& state, const state::Job& job);

// Returns the launchers that have not joined yet, in words that follow "waits for". Empty if none.
std::string LaunchersAwaited(const state::State& state, const state::Job& job);

// Returns the nodes that the job avoids and why: "n0 (no user alice), n1 (...)".
std::string NodesTried(const state::Job& job);

// Returns the processes that could not be killed: "on n1 a process of job j outlives SIGKILL: ...".
// Empty if none.
std::string UnkillableProcesses(const state::State& state, const Agents& agents);

// Returns the cluster's nodes with their allocations, sorted by name.
std::vector<v1::ClusterNodeStatus> NodeStatuses(const state::State& state, const Agents& agents);

// How to request a worker's log: the stream to use, and the message without call, stream, place and
// limit.
struct LogSource {
  StreamId stream;
  v1::ReadLog read;
  // The job has ended, and nothing of it is left on the node.
  bool ended = false;
};

// Finds where a worker's log is. FAILED_PRECONDITION: there is no such job, run or rank, or the job
// was not submitted.
// UNAVAILABLE: its node has no connected agent.
absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request, const state::State& state,
                                  const Agents& agents);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_ALLOCATIONS_H_
