// The durable state of the core. What is saved are the messages of proto/state.proto, `saved` or in
// maps; all else here follows from them. Plain values; only apply.h changes them. One thread.
#ifndef CADRE_RENDEZVOUS_STATE_STATE_H_
#define CADRE_RENDEZVOUS_STATE_STATE_H_

#include <cstdint>
#include <map>
#include <string>

#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/keyspace/stored.h"
#include "rendezvous/state/jobs_by_user.h"
#include "rendezvous/state/owner.h"
#include "rendezvous/state/policy.h"

namespace cadre::state {

// The current or last generation of a job. Before the first it has no members, and the number that
// the first goes on from.
struct Generation {
  Generation() = default;
  explicit Generation(saved::Generation generation);

  uint64_t number() const { return saved.number(); }
  uint32_t world_size() const { return saved.workers_size(); }
  uint32_t nodes() const { return saved.members_size(); }
  const saved::Member& member(uint32_t node_rank) const;
  const saved::Member& member_of(uint32_t rank) const;
  saved::RankState worker(uint32_t rank) const;
  // Null: nothing has failed.
  const v1::Failure* root_cause() const;

  saved::Generation saved;

  // Node name to node rank.
  std::map<std::string, uint32_t> node_ranks;
  // Members neither lost nor cleared.
  uint32_t nodes_busy = 0;
  // Workers that are no longer only assigned, that run, that have succeeded.
  uint32_t started = 0;
  uint32_t running = 0;
  uint32_t succeeded = 0;
};

struct Job {
  Job() = default;
  explicit Job(saved::Job job);

  const std::string& name() const { return saved.spec().name(); }
  v1::JobPhase phase() const { return saved.phase(); }
  // Who submitted it to the cluster; empty: nodes brought it.
  const std::string& user() const { return saved.submission().user(); }
  // Whose it is, however it came; empty: the administrators'.
  const std::string& owner() const { return OwnerFrom(user(), saved.started_by()); }

  saved::Job saved;
  // By name.
  std::map<std::string, saved::AdmittedNode> nodes;
  Generation generation;
  // Of the current generation.
  keyspace::Stored store;

  // What the spec means.
  Policy policy;
  // Of the spec; 0: the job has ended.
  size_t spec_bytes = 0;
  // Of all nodes.
  uint64_t slots = 0;
};

struct Cluster {
  // By name.
  std::map<std::string, saved::ClusterNode> nodes;
  // By id.
  std::map<uint64_t, saved::PlacedPart> parts;
};

struct State {
  std::map<std::string, Job> jobs;
  Cluster cluster;
  saved::Counters counters;

  // Ended jobs still in `jobs`, oldest first.
  std::map<uint64_t, std::string> ended_jobs;
  // All of `jobs`, by who submitted them.
  JobsByUser by_user;
};

inline bool HasEnded(v1::JobPhase phase) {
  return phase == v1::SUCCEEDED || phase == v1::FAILED || phase == v1::CANCELLED_PHASE;
}

// It has exited or was given up.
inline bool IsOver(saved::RankState worker) {
  return worker == saved::RANK_SUCCEEDED || worker == saved::RANK_FAILED;
}

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_STATE_H_
