// One simulated history of a cluster's queue, with its machines and launchers, drawn from its seed.
// It runs the real core of the server and the real cores of the machines' agents and of the
// launchers that they start. Jobs are submitted, cancelled and submitted again, and nodes are
// drained, while connections break, stall and are cut, and agents and the server are killed. Then
// the faults stop until every job has ended. One thread.
//
// After every step it checks that no part (a job's share of one node) runs twice at a time, that no
// CPU and no GPU of a machine is allocated twice, and that what the server orders to stop is gone
// in time; at the end, that every job has ended and left nothing behind.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_

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
#include "tests/simulation/world.h"

namespace cadre::simulation {

// The launcher of one part on a simulated machine: the real core of its agent with scripted
// workers.
class ClusterLauncher final : public StreamClient {
 public:
  // `ended` is called once, when the process ends by itself; it may leave workers behind. `machine`
  // is the number of a node of the network.
  ClusterLauncher(World& world, Network& network, int machine, const v1::StartPart& start,
                  std::function<void(std::string how)> ended);
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
};

struct MachinePlan {
  uint32_t cpus = 0;
  uint32_t gpus = 0;
};

// One machine of a simulated cluster: the real core of its agent, a supervisor that behaves as
// agent/supervisor does, and launchers. The agent is killed or terminated, and comes back.
class ClusterMachine final : public StreamClient {
 public:
  ClusterMachine(World& world, Network& network, int number, MachinePlan plan,
                 ClusterMutation mutation);

  void StartAgent();
  // Kills the agent; its supervisor kills what the agent ran, and exits.
  void KillAgent(absl::Duration back_after);
  // Sends SIGTERM to the agent.
  void EndAgent(absl::Duration back_after);
  // From now on the agent keeps running.
  void Heal();

  bool idle() const { return launchers_.empty(); }
  // The first property that did not hold; empty if all held.
  const std::string& broken() const { return broken_; }
  const MachinePlan& plan() const { return plan_; }
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
  void CheckRoom();
  // The server has ordered a part to stop; checks that the part is gone in time.
  void CheckStop(const v1::StopPart& stop);

  World& world_;
  Network& network_;
  const int number_;
  const MachinePlan plan_;
  const ClusterMutation mutation_;
  std::string broken_;

  // The state of one life of the agent.
  std::unique_ptr<agent::ClusterCore> core_;
  uint64_t life_ = 0;
  std::optional<ConnectionId> connection_;
  bool connected_ = false;
  bool over_ = false;
  absl::Duration back_after_;
  MonoTime timer_at_ = MonoTime::Never();

  // The launchers of all lives, by start.
  std::map<uint64_t, Launched> launchers_;
  uint64_t starts_ = 0;
};

struct ClusterResult {
  // The first property that did not hold; empty if all held.
  std::string broken;
  // Equal hashes mean equal histories.
  uint64_t hash = 0;
  uint64_t events = 0;
  int succeeded = 0;
  int failed = 0;
  int cancelled = 0;
  int agents_lost = 0;
  // The last events as text, if the caller asked to keep them.
  std::deque<std::string> lines;
};

ClusterResult RunClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_
