// The invariants of every history. They are checked after every step, by other means than the
// cores' own: from the events that go into the server's core and the effects that come out, and
// from the true state of the workers, of which the cores know only by messages.
//
//   I1  one generation of a job at a time: none forms while a worker of an older one lives on a
//       node that is not given up; no node runs workers of two; numbers grow and are never reused
//   I2  ranks are a bijection, and all members receive the same assignment
//   I3  the server heard every member within its lease when the generation formed
//   I4  what the server has sent survives its crash; a new start finds what was saved
//   I5  no node is given up because the server was paused, was down or could not save
//   I6  after the faults the job runs to its end, or fails with a reason (history.cc)
//   I7  after the end no worker, stream or timer is left (history.cc, node.cc)
//   I8  the root cause is a failure that happened, and the first that the server heard of; of ranks
//       that hang, it is the one with the least progress of all that were reported to the server
//   I9  the core's own invariants, bounds of its lists and queues among them
//   I10 the same seed gives the same history (simulation_test.cc)
//   and the store's: StoreModel.
//
// One thread.
#ifndef CADRE_TESTS_SIMULATION_ORACLE_H_
#define CADRE_TESTS_SIMULATION_ORACLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/core/agent_core.h"
#include "proto/store.pb.h"
#include "rendezvous/core/core.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// Identifies a generation for ever: its number starts again if the server's state is lost.
struct GenerationKey {
  uint64_t server_id = 0;
  std::string job;
  uint64_t number = 0;

  friend bool operator<(const GenerationKey& a, const GenerationKey& b) {
    return std::tie(a.server_id, a.job, a.number) < std::tie(b.server_id, b.job, b.number);
  }
  friend bool operator==(const GenerationKey& a, const GenerationKey& b) {
    return std::tie(a.server_id, a.job, a.number) == std::tie(b.server_id, b.job, b.number);
  }
  std::string Text() const;
};

// Returns the id that rank 0 of the generation publishes.
std::string IdOf(const GenerationKey& generation);

// What workers may observe of a generation's store, modelled apart from the store itself: sums are
// seen once and never decrease, a worker reads what it wrote, the id is the generation's own, and
// no barrier opens too early.
class StoreModel {
 public:
  // Call it when an operation is first requested; pass the result to Answered().
  int64_t Asked(const GenerationKey& generation, const v1::StoreRequest& request);
  // Call it when the operation was answered with OK. Returns "", or what is wrong with the answer.
  std::string Answered(const GenerationKey& generation, uint32_t world_size, int64_t asked,
                       const v1::StoreRequest& request, const v1::StoreReply& reply);

 private:
  struct Sum {
    int64_t asked = 0;
    int64_t largest = 0;
    std::set<int64_t> seen;
  };
  struct Generation {
    std::map<std::string, Sum> sums;
    std::map<std::string, std::string> written;
    std::map<std::string, std::set<int32_t>> entered;
  };
  std::map<GenerationKey, Generation> generations_;
};

// The true state of one worker.
struct WorkerTruth {
  int node = 0;
  bool alive = true;
  // Whether the server has given up the worker's node meanwhile.
  bool given_up = false;
  bool succeeded = false;
  // Whether it failed by itself; `code`, `signal` and `hangs` tell how. A worker that hangs
  // stays alive.
  bool failed = false;
  bool hangs = false;
  MonoTime reported_at = MonoTime();  // when it last reported progress
  int code = 0;
  int signal = 0;
};

std::string NameOfNode(int node);
int NodeOfName(absl::string_view name);

// Counts what the histories of a run contained, so that a test can check that they covered enough.
struct Tally {
  uint64_t generations = 0;
  uint64_t restarts = 0;
  uint64_t nodes_lost = 0;
  uint64_t server_starts = 0;
  uint64_t degraded_rounds = 0;
  uint64_t store_answers = 0;
  uint64_t adoptions = 0;
  std::map<v1::JobPhase, uint64_t> outcomes;
};

class Oracle {
 public:
  Oracle(World& world, const Plan& plan);

  // The first invariant that did not hold; empty while all hold.
  const std::string& broken() const { return broken_; }
  void Break(std::string what);
  const Tally& tally() const { return tally_; }

  // --- the server's host ---
  void ServerStarted(uint64_t server_id, const Core& core, absl::Duration running);
  // `saved`: all that the core knows is on the disk.
  void ServerDied(const Core& core, bool saved);
  // The server sends nothing while it cannot save; when it can again, it has sent what it held
  // back.
  void ServerCanSave(bool can, absl::Duration running);
  void Arrived(StreamId stream, MonoTime at);
  void BeforeStep(const Event& event);
  // `running`: how long the server has run, pauses not counted.
  void AfterStep(const Core& core, const Event& event, const Effects& effects,
                 absl::Duration running);
  void Sent(const SendToStream& send);

  // --- nodes ---
  void WorkersStart(int node, const GenerationKey& generation, const v1::Assign& assign);
  WorkerTruth& Worker(const GenerationKey& generation, uint32_t rank);
  void WorkerGone(const GenerationKey& generation, uint32_t rank);
  bool HasWorkers(int node) const { return alive_[node] > 0; }
  void AgentLeft(int node, const agent::Exit& exit);

  StoreModel& store() { return store_; }
  void CountStoreAnswer() { ++tally_.store_answers; }
  void CountAdoption() { ++tally_.adoptions; }
  // Returns the job's generation that was announced last; its number is 0 before the first.
  GenerationKey Newest(const std::string& job) const;

 private:
  struct Member {
    uint32_t first_rank = 0;
    uint32_t slots = 0;
    bool lost = false;
  };
  struct JobView {
    const v1::JobSpec* spec = nullptr;
    bool ended = true;
    uint32_t runs = 0;
    uint64_t generation = 0;
    uint32_t restart_count = 0;
    std::map<std::string, Member> members;
    // The first worker failure that the server heard of in this generation.
    std::optional<std::pair<std::string, uint32_t>> first_failure;  // node, local rank
    bool first_gave_up = false;                                     // the worker did not exit
    // Ranks of this generation whose progress their nodes have reported.
    std::set<uint32_t> reported;
    bool stopped = false;
    // Both are in the server's running time: when it first ordered the generation to stop, and when
    // it announced the generation; infinitely long ago if another life of the server did.
    absl::Duration stopping_at;
    absl::Duration formed_at = -absl::InfiniteDuration();
    // The verdict that the server sent for this run.
    std::optional<std::string> verdict;
  };
  struct StreamView {
    std::string job;
    std::string node;
    bool attached = false;
    absl::Duration heard_at;  // in the server's running time
    // When the node's messages arrived, for the last lease.
    std::vector<MonoTime> arrivals;
  };
  struct NodeView {
    std::optional<StreamId> stream;
    MonoTime attached_at;
    absl::Duration gone_at;  // in the server's running time
    MonoTime gone_since;
  };
  struct Announced {
    uint32_t world_size = 0;
    uint32_t nodes = 0;
    std::string master;
    uint32_t restart_count = 0;
    // By node rank: the node, its first rank and its slots.
    std::map<uint32_t, std::tuple<std::string, uint32_t, uint32_t>> assigned;
  };

  // Notes a job that a server loaded when it started.
  void FindSaved(const saved::WholeJob& whole, const std::optional<std::string>& verdict,
                 absl::Duration running);
  void WatchWelcomes(const Effects& effects);
  void Detach(StreamId stream, absl::Duration running);
  void CheckAssign(const std::string& node, const v1::ServerMessage& message);
  bool Holds(bool condition, absl::string_view what);

  // These follow the jobs in the core's records.
  void WatchRecord(const v1::Record& record, absl::Duration running);
  void OnFormed(const std::string& name, const v1::GenerationFormed& record,
                absl::Duration running);
  void CheckOldWorkers(const std::string& name, const saved::Generation& formed);
  void CheckFormed(const std::string& name, const saved::Generation& formed,
                   absl::Duration running);
  void CheckSettleWindow(const std::string& name, const JobView& job,
                         v1::GenerationFormed::Why why);
  void OnRemoved(const std::string& name, const v1::NodeRemoved& removed, absl::Duration running);
  void CheckLost(const std::string& name, const v1::NodeRemoved& removed, absl::Duration running);
  void CheckHang(const std::string& name, uint32_t named);
  void CheckStartTimeout(const std::string& name, absl::Duration running);
  void OnStopOrdered(const std::string& name, const v1::StopOrdered& order, absl::Duration running);
  void OnEnded(const std::string& name, const v1::Verdict& verdict);
  void CheckFaultless(const std::string& name, const v1::Verdict& verdict);

  World& world_;
  const Plan& plan_;
  std::string broken_;
  Tally tally_;

  uint64_t server_id_ = 0;
  std::optional<std::pair<uint64_t, std::string>> state_at_death_;  // server_id, text
  // Since when the server cannot save, in its running time.
  std::optional<absl::Duration> cannot_save_since_;
  std::map<std::string, JobView> jobs_;
  std::map<StreamId, StreamView> streams_;
  std::map<std::pair<std::string, std::string>, NodeView> nodes_;  // job, node
  std::map<GenerationKey, Announced> announced_;
  std::map<GenerationKey, std::map<uint32_t, WorkerTruth>> workers_;
  // Members that the server has given up, with their generation.
  std::set<std::pair<GenerationKey, int>> given_up_;
  std::vector<int> alive_;  // the number of workers that are alive, by node
  StoreModel store_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_ORACLE_H_
