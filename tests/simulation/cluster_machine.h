// The machines of a simulated cluster, each with the real core of its agent and the launchers that
// the agent starts. One thread.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_MACHINE_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_MACHINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/cluster/core/cluster_core.h"
#include "agent/core/agent_core.h"
#include "proto/cluster.pb.h"
#include "tests/simulation/network.h"
#include "tests/simulation/node_shares.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// Called when a machine begins to run the script of a batch job: with its order, and for how long
// the script runs unless it is stopped.
using ScriptBegins = std::function<void(const v1::StartPart& start, absl::Duration takes)>;

// The launcher of one part on a simulated machine: the real core of its agent with scripted
// workers, or with the script of a batch job.
class ClusterLauncher final : public StreamClient {
 public:
  // `ended` is called once, when the process ends by itself; it may leave workers behind. `machine`
  // is the number of a node of the network.
  ClusterLauncher(World& world, Network& network, int machine, const v1::StartPart& start,
                  const ScriptBegins& script_begins, std::function<void(std::string how)> ended);
  ~ClusterLauncher() override;

  // Sends SIGTERM.
  void Terminate();
  // Sends SIGKILL to the launcher and all workers that are left.
  void Kill();
  bool lives() const { return core_ != nullptr; }

  void OnUp(ConnectionId id) override;
  void OnMessage(ConnectionId id, const v1::ServerMessage& message) override;
  void OnDown(ConnectionId id, const absl::Status& status) override;

 private:
  void Connect();
  // Calls `what` after `delay`, unless the launcher has ended by then.
  void In(absl::Duration delay, std::function<void()> what);
  void Feed(const agent::AgentEvent& event);
  void Execute(agent::AgentCommand command);
  void StartWorkersOf(const agent::StartWorkers& command);
  void StopWorkersOf(const agent::StopWorkers& command);
  void ArmTimer();
  void End(const std::string& how);

  World& world_;
  Network& network_;
  const int machine_;
  const v1::StartPart start_;
  const ScriptBegins script_begins_;
  const std::function<void(std::string)> ended_;
  std::unique_ptr<agent::AgentCore> core_;
  // Scheduled calls check this first, because they may outlive the object.
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);
  std::optional<ConnectionId> connection_;
  bool connected_ = false;
  std::deque<agent::AgentEvent> own_events_;
  bool feeding_ = false;
  std::optional<int> exit_;
  uint64_t generation_ = 0;
  std::set<uint32_t> alive_;
  MonoTime timer_at_ = MonoTime::Never();
};

// Deliberate mistakes at the edge of the simulation, which show that the checks would find them.
enum class ClusterMutation {
  kNone,
  // An agent that comes back does not report what it still runs.
  kForgetParts,
  // Orders to stop a launcher are lost inside the machine.
  kDropStops,
  // An agent that is killed leaves its launchers running.
  kLeaveLaunchers,
  // An agent does not learn in which allocation of a batch job a step runs.
  kForgetBatchJobs,
};

// One machine of a simulated cluster: the real core of its agent, a supervisor that behaves as
// agent/supervisor does, and launchers. The agent is killed or terminated, and comes back.
class ClusterMachine final : public StreamClient {
 public:
  ClusterMachine(World& world, Network& network, int number, NodeSize size,
                 ClusterMutation mutation, ScriptBegins script_begins);

  void StartAgent();
  // Kills the agent; its supervisor kills what the agent ran, and exits.
  void KillAgent(absl::Duration back_after);
  // Sends SIGTERM to the agent.
  void EndAgent(absl::Duration back_after);
  // From now on the agent keeps running.
  void Heal();

  bool idle() const { return launchers_.empty(); }
  // Whether a process of the part's launcher is left.
  bool Runs(uint64_t part) const;
  // The first property that did not hold; empty if all held.
  const std::string& broken() const { return broken_; }
  const NodeSize& size() const { return size_; }
  std::string Name() const;

  void OnUp(ConnectionId id) override;
  void OnMessage(ConnectionId id, const v1::ServerMessage& message) override;
  void OnDown(ConnectionId id, const absl::Status& status) override;

 private:
  struct Launched {
    v1::Part part;
    std::vector<uint32_t> gpus;
    std::unique_ptr<ClusterLauncher> launcher;
    // The number of the start, and the number of the agent's life that made it.
    uint64_t start = 0;
    uint64_t life = 0;
  };

  void Connect();
  void Feed(const agent::ClusterEvent& event);
  void Execute(agent::ClusterCommand command);
  void Launch(const agent::StartLauncher& command);
  void StopLaunched(const agent::StopLauncher& command);
  // Removes a start of which nothing is left.
  void Clear(uint64_t start);
  Launched* FindStart(uint64_t start);
  void ArmTimer();
  void AgentIsOver(absl::Duration back_after);
  void Expect(bool holds, const std::string& what);
  NodeShare ShareOf(const v1::Part& part, std::vector<uint32_t> gpus) const;
  void CheckRoom();
  // The server has ordered a part to stop; checks that the part is gone in time.
  void CheckStop(const v1::StopPart& stop);

  World& world_;
  Network& network_;
  const int number_;
  const NodeSize size_;
  const ClusterMutation mutation_;
  const ScriptBegins script_begins_;
  std::string broken_;

  // The state of one life of the agent.
  std::unique_ptr<agent::ClusterCore> core_;
  uint64_t life_ = 0;
  std::optional<ConnectionId> connection_;
  bool connected_ = false;
  bool over_ = false;
  absl::Duration back_after_;
  MonoTime timer_at_ = MonoTime::Never();

  // The orders to start parts, of all lives.
  std::map<uint64_t, v1::StartPart> ordered_;
  // The launchers of all lives, by start.
  std::map<uint64_t, Launched> launchers_;
  uint64_t starts_ = 0;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_MACHINE_H_
