// What must hold in every history, checked after every step, by other means than the cores' own:
// from the events that go into the server's core and the effects that come out, and from the truth
// about the workers, which the cores can only hear of.
//
//   I1  one generation of a job at a time: none forms while a worker of an older one lives on a
//   node
//       that is not given up; no node runs workers of two; numbers grow and are never used twice
//   I2  ranks are a bijection, and all members are told the same
//   I3  every member was heard within its lease when the generation formed
//   I4  what was told outlives the server; what was saved is what a new start finds
//   I5  no node is given up because the server stood still, was away or could not save
//   I6  after the faults the job runs to its end, or fails with a reason (history.cc)
//   I7  after the end no worker, stream or timer is left (history.cc, node.cc)
//   I8  the root cause is a failure that happened, and the first that the server heard of; of ranks
//       that hang, the one that got on least of all that it was shown
//   I9  the core's own invariants, bounds of its lists and queues among them
//   I10 the same seed gives the same history (simulation_test.cc)
//   and the store's: store_model.h.
//
// One thread.
#ifndef CADRE_TESTS_SIMULATION_ORACLE_H_
#define CADRE_TESTS_SIMULATION_ORACLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/agent_core.h"
#include "rendezvous/core/core.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/store_model.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// What became of one worker in truth.
struct WorkerTruth {
  int node = 0;
  bool alive = true;
  // The server has given its node up meanwhile.
  bool given_up = false;
  bool succeeded = false;
  // It failed by itself, and how. A hang is one that goes on living.
  bool failed = false;
  bool hangs = false;
  MonoTime reported_at = MonoTime();  // its progress, the last time
  int code = 0;
  int signal = 0;
};

std::string NameOfNode(int node);
int NodeOfName(absl::string_view name);

// What the histories of a run had in them, so that a test can see that they had enough.
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

  // The first thing that did not hold; empty while everything does.
  const std::string& broken() const { return broken_; }
  void Break(std::string what);
  const Tally& tally() const { return tally_; }

  // --- the server's host ---
  void ServerStarted(uint64_t server_id, const Core& core, absl::Duration running);
  // `saved`: all that the core knows is on the disk.
  void ServerDied(const Core& core, bool saved);
  // It says nothing from now on, or has said what it held.
  void ServerCanSave(bool can, absl::Duration running);
  void Arrived(StreamId stream, MonoTime at);
  void BeforeStep(const Event& event);
  // `running`: how long the server has not stood still.
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
  // Generation of the job that was announced last, and 0 before the first.
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
    // First failure of a worker that the server heard of in this generation.
    std::optional<std::pair<std::string, uint32_t>> first_failure;  // node, local rank
    bool first_gave_up = false;                                     // it did not exit
    // Ranks of this generation of which nodes said where they are.
    std::set<uint32_t> looked_at;
    bool stopped = false;
    // In this server's running time: since when it has said that the generation is to be stopped,
    // and when it announced it; infinitely long ago when another life of it did.
    absl::Duration stopping_at;
    absl::Duration formed_at = -absl::InfiniteDuration();
    // What was sent as the verdict of this run.
    std::optional<std::string> verdict;
  };
  struct StreamView {
    std::string job;
    std::string node;
    bool attached = false;
    absl::Duration heard_at;  // in the server's running time
    // When what it said came in, the last lease of it.
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
    // By node rank: node, first rank, slots.
    std::map<uint32_t, std::tuple<std::string, uint32_t, uint32_t>> assigned;
  };

  // oracle.cc
  // A job that a server began with.
  void FindSaved(const saved::WholeJob& whole, const std::optional<std::string>& verdict,
                 absl::Duration running);
  void WatchWelcomes(const Effects& effects);
  void Detach(StreamId stream, absl::Duration running);
  void CheckAssign(const std::string& node, const v1::ServerMessage& message);
  bool Holds(bool condition, absl::string_view what);

  // oracle_records.cc
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
  // Since when it cannot save, in its running time.
  std::optional<absl::Duration> cannot_save_since_;
  std::map<std::string, JobView> jobs_;
  std::map<StreamId, StreamView> streams_;
  std::map<std::pair<std::string, std::string>, NodeView> nodes_;  // job, node
  std::map<GenerationKey, Announced> announced_;
  std::map<GenerationKey, std::map<uint32_t, WorkerTruth>> workers_;
  // Members that the server has given up, with the generation.
  std::set<std::pair<GenerationKey, int>> given_up_;
  std::vector<int> alive_;  // workers, by node
  StoreModel store_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_ORACLE_H_
