// The durable state of the core: what its records say. Plain values; only apply.cc changes them.
// One thread.
#ifndef CADRE_RENDEZVOUS_STATE_STATE_H_
#define CADRE_RENDEZVOUS_STATE_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "proto/job.pb.h"
#include "rendezvous/keyspace/stored.h"
#include "rendezvous/state/jobs_by_user.h"
#include "rendezvous/state/policy.h"

namespace cadre {

// A node that is in a job: a member of its generation, or a spare.
struct NodeState {
  std::string name;
  std::string host;
  std::string address;
  uint32_t slots = 0;
  uint64_t incarnation = 0;
  int32_t wanted_node_rank = -1;
  uint32_t held_port = 0;
  std::string master_addr;
  uint32_t master_port = 0;
  // Its workers may outlive its agent by this.
  absl::Duration adopt_timeout;
  // Position in the order of all admissions to the job.
  uint64_t admission = 0;
};

// One node of a generation, by node rank.
struct MemberState {
  std::string node;
  uint32_t first_rank = 0;
  uint32_t slots = 0;
  uint32_t succeeded = 0;
  // The node is gone; one that comes back under its name is a newcomer.
  bool lost = false;
  // No worker of the generation is left on the node.
  bool cleared = false;
};

// What is known of one rank of a generation.
enum class RankState : uint8_t { kAssigned, kRunning, kSucceeded, kFailed };

// The current or last generation of a job; number 0 before the first.
struct GenerationState {
  uint64_t number = 0;
  std::vector<MemberState> members;
  // Node name to node rank.
  std::map<std::string, uint32_t> node_ranks;
  // By global rank.
  std::vector<RankState> workers;
  // Members neither lost nor cleared.
  uint32_t nodes_busy = 0;
  uint32_t started = 0;  // workers no longer kAssigned
  uint32_t running = 0;
  uint32_t succeeded = 0;
  std::string master_addr;
  uint32_t master_port = 0;
  uint32_t restart_count = 0;
  int64_t formed_us = 0;
  int64_t stopping_us = 0;
  int64_t failed_us = 0;
  std::string stop_reason;
  // Workers that can rejoin are kept when it is stopped.
  bool rejoin = false;
  std::optional<v1::Failure> root_cause;
  std::vector<v1::Failure> collateral;
};

struct JobState {
  v1::JobSpec spec;
  Policy policy;
  v1::JobPhase phase = v1::GATHERING;
  std::map<std::string, NodeState> nodes;
  // Nodes the environment announced; the first list that a node brings.
  std::vector<std::string> expected_nodes;
  uint64_t admissions = 0;
  uint64_t slots = 0;  // of all nodes
  GenerationState generation;
  // Of the current generation.
  keyspace::Stored store;
  uint32_t restart_count = 0;
  // When the restarts that count against the budget were decided.
  std::vector<int64_t> counted_restarts_us;
  uint32_t counted_restarts = 0;
  int64_t created_us = 0;
  int64_t gathering_us = 0;
  int64_t not_before_us = 0;
  int64_t last_join_us = 0;
  uint64_t generations_announced = 0;
  std::vector<v1::Failure> earlier;
  v1::Timeline timeline;
  std::optional<v1::Verdict> verdict;
  // As in JobStatus.
  std::string run;
  // Position in the order in which jobs ended.
  uint64_t ended = 0;
  // Who submitted it to the cluster; empty: nodes brought it. Its position in the order of
  // submissions, and the submission's request id.
  std::string user;
  uint64_t order = 0;
  std::string request_id;
  // By name: nodes that it is kept off.
  std::map<std::string, v1::AvoidedNode> avoid;
  // Launchers of it that ended before they had joined, since it was submitted.
  uint32_t failed_starts = 0;
};

// A part of a job that a node of the cluster has, or had and has not given back yet.
struct PartState {
  v1::Part part;
  bool taken_back = false;
  // Its launcher has joined the job.
  bool joined = false;
};

struct ClusterState {
  // By name; `connected` and `parts` are not used.
  std::map<std::string, v1::ClusterNodeStatus> nodes;
  std::map<uint64_t, PartState> parts;
  uint64_t last_part = 0;
  uint64_t submitted = 0;
};

struct State {
  std::map<std::string, JobState> jobs;
  uint64_t jobs_ended = 0;
  // Ended jobs still in `jobs`, oldest first.
  std::map<uint64_t, std::string> ended_jobs;
  // All of `jobs`, by who submitted them.
  JobsByUser by_user;
  ClusterState cluster;
};

inline bool HasEnded(v1::JobPhase phase) {
  return phase == v1::SUCCEEDED || phase == v1::FAILED || phase == v1::CANCELLED_PHASE;
}

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STATE_STATE_H_
