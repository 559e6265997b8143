// The durable state of the core. What is saved are the messages of proto/state.proto, which are
// members named `saved` or values of maps; everything else is derived from them. Plain values,
// changed only by Apply() (apply.h). One thread.
#ifndef CADRE_RENDEZVOUS_STATE_STATE_H_
#define CADRE_RENDEZVOUS_STATE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/keyspace/store_content.h"
#include "rendezvous/state/owner.h"
#include "rendezvous/state/policy.h"

namespace cadre::state {

// The current or last generation of a job. Before the first one it has no members, and its number
// is the one after which numbering continues.
struct Generation {
  Generation() = default;
  explicit Generation(saved::Generation generation);

  uint64_t number() const { return saved.number(); }
  uint32_t world_size() const { return saved.workers_size(); }
  uint32_t nodes() const { return saved.members_size(); }
  const saved::Member& member(uint32_t node_rank) const;
  const saved::Member& member_of(uint32_t rank) const;
  saved::RankState worker(uint32_t rank) const;
  // Null if nothing has failed.
  const v1::Failure* root_cause() const;

  saved::Generation saved;

  // Maps node names to node ranks.
  std::map<std::string, uint32_t> node_ranks;
  // The number of members that are neither lost nor cleared.
  uint32_t nodes_busy = 0;
  // The numbers of workers that are past RANK_ASSIGNED, that run, and that have succeeded.
  uint32_t started = 0;
  uint32_t running = 0;
  uint32_t succeeded = 0;
};

struct Job {
  Job() = default;
  explicit Job(saved::Job job);

  const std::string& name() const { return saved.spec().name(); }
  v1::JobPhase phase() const { return saved.phase(); }
  // The id of a job that was submitted to the cluster; 0 if a joining node brought it (`cadre
  // run`).
  uint64_t id() const { return saved.submission().order(); }
  // The name that the job was submitted with. Other jobs may have it too, but not name().
  const std::string& submitted_name() const {
    return saved.submission().name().empty() ? name() : saved.submission().name();
  }
  // The user who submitted the job; empty if a joining node brought it.
  const std::string& user() const { return saved.submission().user(); }
  // The owner of a submitted or brought job; empty means the administrators.
  const std::string& owner() const { return OwnerFrom(user(), saved.started_by()); }

  saved::Job saved;
  // Keyed by node name.
  std::map<std::string, saved::AdmittedNode> nodes;
  Generation generation;
  // The store of the current generation.
  keyspace::StoreContent store;

  // The spec with its defaults filled in.
  Policy policy;
  // The bytes of the spec; 0 once the job has ended.
  size_t spec_bytes = 0;
  // The slots of all nodes together.
  uint64_t slots = 0;
};

struct Cluster {
  // Keyed by node name.
  std::map<std::string, saved::ClusterNode> nodes;
  // The jobs\' shares of nodes (saved as parts), keyed by id.
  std::map<uint64_t, saved::PlacedPart> allocations;
};

// How many jobs each user has, how much they take, and which ended job is dropped next.
// `user` is the job's owner; empty means the administrators. `ended` is the job's position in the
// order in which jobs ended, or 0 if it has not.
class JobsByUser {
 public:
  void Add(const std::string& user, uint64_t ended);
  void Remove(const std::string& user, uint64_t ended);

  // The bytes that a user's jobs take which have not ended. Grow() and Shrink() require that the
  // user has jobs.
  struct Bytes {
    size_t specs = 0;
    size_t stores = 0;
  };
  void Grow(const std::string& user, const Bytes& by);
  void Shrink(const std::string& user, const Bytes& by);

  // The number of the user's jobs that have not ended, and the bytes that they take.
  size_t NotEnded(const std::string& user) const;
  Bytes BytesOf(const std::string& user) const;
  const Bytes& all_bytes() const { return all_; }

  // Returns the oldest ended job of the user who has the most, so that one user's many jobs do not
  // push out the few of others. 0 if there is none.
  uint64_t NextToDrop() const;

 private:
  struct Jobs {
    size_t not_ended = 0;
    std::set<uint64_t> ended;
    Bytes bytes;
  };
  // Holds only users who have jobs.
  std::map<std::string, Jobs> users_;
  Bytes all_;
};

// Returns the program with its first arguments, in one line of at most 256 bytes; of a batch job
// the name of its script.
std::string CommandText(const Job& job);

// Returns the nodes of the job's allocations that are not being taken back: of a batch job the node
// of its script first, then as they were placed.
std::vector<std::string> AllocatedNodes(const Cluster& cluster, const Job& job);

struct State {
  std::map<std::string, Job> jobs;
  Cluster cluster;
  saved::Counters counters;

  // The ended jobs in `jobs` by the order in which they ended, oldest first.
  std::map<uint64_t, std::string> ended_jobs;
  // Counts all of `jobs` by their owner.
  JobsByUser by_user;
  // The names of the submitted jobs by their ids, and the ids by the names that they were submitted
  // with.
  std::map<uint64_t, std::string> by_id;
  std::map<std::string, std::set<uint64_t>> by_submitted_name;
};

inline bool HasEnded(v1::JobPhase phase) {
  return phase == v1::SUCCEEDED || phase == v1::FAILED || phase == v1::CANCELLED_PHASE;
}

// Whether the worker has exited or was given up.
inline bool IsOver(saved::RankState worker) {
  return worker == saved::RANK_SUCCEEDED || worker == saved::RANK_FAILED;
}

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_STATE_H_
