// One node and its supervisor. One thread.
//
// A node is the real agent core, driven as agent/daemon drives it, with a link that behaves as
// agent/link does, and a supervisor. The agent is killed, is paused, and comes back as another
// life.
#ifndef CADRE_TESTS_SIMULATION_NODE_H_
#define CADRE_TESTS_SIMULATION_NODE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "agent/core/agent_core.h"
#include "tests/simulation/network.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// One node's supervisor with scripted workers, which behaves as agent/supervisor does: a stop ends
// with AllGone, but workers that end by themselves do not cause it; when the agent is gone, all
// workers are killed, or kept for a while for the next agent. Where the job recovers in place, most
// workers can rejoin: they abandon their generation and wait.
class Supervisor {
 public:
  struct Host {
    // Delivers events to the agent: frames, and the requests of its workers.
    std::function<void(agent::AgentEvent)> send_event;
    // A worker failed by itself; its peers on other nodes may notice.
    std::function<void(const GenerationKey&)> failed;
  };

  Supervisor(World& world, const Plan& plan, Oracle& oracle, int node, Host host);

  void Start(const GenerationKey& generation, const v1::Assign& assign,
             const std::set<uint32_t>& kept);
  void Stop(uint64_t generation, absl::Duration grace, const std::set<uint32_t>& kept);
  // The agent or the machine is gone: no more events are sent about what runs now.
  void KillAll(bool at_once);
  // The agent is gone, and its workers run on for `time`. Returns false if there are none.
  bool KeepWorkers(absl::Duration time);
  // Returns the generation that the node's next agent could adopt.
  std::optional<uint64_t> Adoptable() const;
  // The next agent has adopted the workers; it receives the outcome of each.
  void Adopt();
  // Returns the time by which all workers of an agent that is gone have ended.
  MonoTime GoneBy() const { return gone_by_; }
  void Answer(const v1::StoreReply& reply);
  // Returns the local ranks of the generation's workers that are alive.
  std::vector<uint32_t> Alive(uint64_t generation) const;
  // Workers of that generation may fail because a peer died.
  void PeerFailed(const GenerationKey& generation);

 private:
  enum class Ends { kWell, kFails, kHangs, kNotStarted };
  struct Worker {
    GenerationKey generation;
    uint32_t rank = 0;
    uint32_t local_rank = 0;
    uint32_t world_size = 0;
    bool told = true;  // its agent receives events about it
    bool running = false;
    Ends ends = Ends::kWell;
    bool ignores_sigterm = false;
    bool can_rejoin = false;
    // It has abandoned its generation.
    bool gave_up = false;
    // Counts its generations: events that were scheduled in an earlier one are dropped.
    uint64_t life = 0;
    // Requests that are still to be sent to the store; `waits` is set while one is unanswered.
    std::vector<v1::StoreRequest> to_ask;
    size_t next = 0;
    bool waits = false;
    int64_t asked = 0;
    uint64_t step = 0;
    // The progress that it last showed, for hang diagnosis.
    std::optional<v1::Progress> progress;
  };
  struct Generation {
    std::set<uint64_t> alive;  // includes those that abandoned it
    std::set<uint32_t> kept;   // local ranks that are kept for the next generation
    std::map<uint32_t, v1::WorkerExit> exits;
    bool stopping = false;
    bool gone_is_due = false;
    MonoTime kill_at = MonoTime::Never();
  };

  Worker* Find(uint64_t id);
  // Calls `what` after `delay`, unless the worker is gone by then.
  void Later(absl::Duration delay, uint64_t id, std::function<void(Worker&)> what);
  void Draw(Worker& worker);
  void Script(Worker& worker, uint64_t client);
  void StartFresh(const GenerationKey& generation, const v1::Assign& assign, uint32_t local_rank);
  void Continue(const GenerationKey& generation, const v1::Assign& assign, uint32_t local_rank);
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
  std::map<uint64_t, Worker> workers_;  // the workers that are alive
  std::map<uint64_t, Generation> generations_;
  std::set<uint64_t> gone_;
  MonoTime gone_by_;
  // The number of the current period without an agent; 0 if there is an agent, or all is over.
  uint64_t alone_ = 0;
  uint64_t times_alone_ = 0;
};

class Node final : public StreamClient {
 public:
  Node(World& world, const Plan& plan, int number, Network& network, Oracle& oracle,
       std::function<void(const GenerationKey&)> worker_failed);

  void StartAgent();
  // Kills the agent's process, alone or with the whole machine.
  void KillAgent(bool machine_too, absl::Duration back_after);
  void PauseAgent(absl::Duration lasts);
  void KillSupervisor();
  void Signal(int signal);
  void Heal();

  // Whether no agent runs and none will be started.
  bool IsOver() const { return core_ == nullptr && !comes_back_; }
  Supervisor& supervisor() { return supervisor_; }

  // --- StreamClient ---
  void OnUp(ConnectionId id) override;
  void OnMessage(ConnectionId id, const v1::ServerMessage& message) override;
  void OnDown(ConnectionId id, const absl::Status& status) override;

 private:
  MonoTime Local() const { return me_.clock.Local(world_.now()); }
  bool StandsStill() const { return world_.now() < paused_until_; }
  void Feed(agent::AgentEvent event);
  void Run(const agent::AgentEvent& event);
  void Execute(agent::AgentCommand command);
  void StartWorkersOf(const agent::StartWorkers& command);
  void ProbeWorkers(uint64_t generation);
  void ArmTimer();
  void OnTimer();
  void Connect();
  void EndAgent();

  World& world_;
  const Plan& plan_;
  const int number_;
  const NodePlan& me_;
  Network& network_;
  Oracle& oracle_;
  Supervisor supervisor_;

  std::unique_ptr<agent::AgentCore> core_;
  uint64_t life_ = 0;
  bool comes_back_ = true;
  bool leaving_ = false;
  std::deque<agent::AgentEvent> inbox_;       // events that wait while the agent is paused
  std::deque<agent::AgentEvent> own_events_;  // events that carrying out a command led to
  MonoTime paused_until_;
  MonoTime timer_at_ = MonoTime::Never();
  bool supervisor_lives_ = false;
  bool generation_started_ = false;
  uint64_t incarnation_ = 0;
  // The workers that the node's next agent could adopt; set once their generation was started.
  agent::AdoptedWorkers run_;
  std::optional<ConnectionId> connection_;
  bool connected_ = false;
  absl::Duration backoff_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_NODE_H_
