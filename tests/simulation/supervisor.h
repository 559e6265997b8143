// One node's supervisor with scripted workers, as agent/supervisor behaves: a stop ends with
// AllGone, workers that end by themselves do not; when the agent goes, all workers are killed, or
// kept for a while for another agent.
// Where the job recovers in place, most workers can rejoin: they give their generation up and wait.
// One thread.
#ifndef CADRE_TESTS_SIMULATION_SUPERVISOR_H_
#define CADRE_TESTS_SIMULATION_SUPERVISOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "agent/core/agent_core.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/store_model.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Supervisor {
 public:
  struct Host {
    // What the agent is told: frames, and what its workers ask of it.
    std::function<void(agent::AgentEvent)> tell;
    // A worker failed by itself; its peers on other nodes may notice.
    std::function<void(const GenerationKey&)> failed;
  };

  Supervisor(World& world, const Plan& plan, Oracle& oracle, int node, Host host);

  void Start(const GenerationKey& generation, const v1::Assign& assign,
             const std::set<uint32_t>& kept);
  void Stop(uint64_t generation, absl::Duration grace, const std::set<uint32_t>& kept);
  // The agent is gone, or the machine: nothing is told any more of what runs now.
  void KillAll(bool at_once);
  // The agent is gone, and its workers go on for this long. False: there are none, all is over.
  bool Keep(absl::Duration time);
  // The generation that another agent of this node would take over.
  std::optional<uint64_t> Adoptable() const;
  // It has, and is told what became of each worker.
  void Adopt();
  // Workers of an agent that is gone live no longer than until then.
  MonoTime GoneBy() const { return gone_by_; }
  void Answer(const v1::StoreReply& reply);
  // Local ranks of its workers that are there.
  std::vector<uint32_t> Alive(uint64_t generation) const;
  // Workers of that generation that wait for a dead peer fail, perhaps.
  void PeerFailed(const GenerationKey& generation);

 private:
  enum class Ends { kWell, kFails, kHangs, kNotStarted };
  struct Worker {
    GenerationKey generation;
    uint32_t rank = 0;
    uint32_t local_rank = 0;
    uint32_t world_size = 0;
    bool told = true;  // its agent hears of it
    bool running = false;
    Ends ends = Ends::kWell;
    bool ignores_sigterm = false;
    bool can_rejoin = false;
    // It has given its generation up.
    bool gave_up = false;
    // What was to happen to it in an earlier one does not.
    uint64_t life = 0;
    // What is still to be asked of the store, and what waits for its answer.
    std::vector<v1::StoreRequest> to_ask;
    size_t next = 0;
    bool waits = false;
    int64_t asked = 0;
    uint64_t step = 0;
    // What it last showed, for whoever looks.
    std::optional<v1::Progress> progress;
  };
  struct Generation {
    std::set<uint64_t> alive;  // those that gave it up among them
    std::set<uint32_t> kept;   // local ranks
    std::map<uint32_t, v1::WorkerExit> exits;
    bool stopping = false;
    bool gone_is_due = false;
    MonoTime kill_at = MonoTime::Never();
  };

  Worker* Find(uint64_t id);
  // Runs it later unless the worker is gone by then.
  void Later(absl::Duration delay, uint64_t id, std::function<void(Worker&)> what);
  void Draw(Worker& worker);
  void Script(Worker& worker, uint64_t client);
  void StartFresh(const GenerationKey& generation, const v1::Assign& assign, uint32_t local_rank);
  void GoOn(const GenerationKey& generation, const v1::Assign& assign, uint32_t local_rank);
  void GiveUp(uint64_t id);
  bool OnlyKeptAreLeft(const Generation& generation) const;
  void Begin(uint64_t id, Worker& worker);
  void AskNext(uint64_t id);
  void Ask(Worker& worker);
  void OnAnswer(uint64_t id, const v1::StoreReply& reply);
  void Report(uint64_t id);
  void End(uint64_t id, int code, int signal, bool by_itself);
  void EndWithExit(uint64_t id, v1::WorkerExit exit, bool by_itself);
  void Advance(uint64_t number);

  World& world_;
  const Plan& plan_;
  Oracle& oracle_;
  const int node_;
  const Host host_;
  const bool in_place_;
  uint64_t last_worker_ = 0;
  std::map<uint64_t, Worker> workers_;  // alive
  std::map<uint64_t, Generation> generations_;
  std::set<uint64_t> gone_;
  MonoTime gone_by_;
  // Which of the times without an agent this is; 0: it has one, or is over.
  uint64_t alone_ = 0;
  uint64_t times_alone_ = 0;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_SUPERVISOR_H_
