// One machine of a simulated cluster: the real core of its agent, a supervisor as agent/supervisor
// behaves, and launchers. Its agent dies and comes back, or is told to end. One thread.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_MACHINE_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_MACHINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/cluster/core/cluster_core.h"
#include "tests/simulation/cluster_launcher.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// Mistakes made on purpose at the edge, to show that they are found.
enum class ClusterMutation {
  kNone,
  // An agent that comes back does not say what it still runs.
  kForgetParts,
  // Orders to end a launcher are lost inside the machine.
  kDropStops,
  // An agent that died leaves its launchers running.
  kLeaveLaunchers,
};

struct MachinePlan {
  uint32_t cpus = 0;
  uint32_t gpus = 0;
};

class ClusterMachine final : public StreamClient {
 public:
  ClusterMachine(World& world, Network& network, int number, MachinePlan plan,
                 ClusterMutation mutation);

  void StartAgent();
  // Its supervisor kills what it ran, and leaves.
  void KillAgent(absl::Duration back_after);
  // SIGTERM.
  void EndAgent(absl::Duration back_after);
  // It runs from now on.
  void Heal();

  bool idle() const { return launchers_.empty(); }
  // What does not hold; empty: all does.
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
    // Which start it was, and of which life of the agent.
    uint64_t start = 0;
    uint64_t life = 0;
  };

  void Connect();
  void Feed(const agent::ClusterEvent& event);
  void Execute(agent::ClusterCommand command);
  void Launch(const agent::StartLauncher& command);
  void StopLaunched(const agent::StopLauncher& command);
  // Nothing of it is left.
  void Clear(uint64_t start);
  Launched* FindStart(uint64_t start);
  void ArmTimer();
  void AgentIsOver(absl::Duration back_after);
  void Expect(bool holds, const std::string& what);
  void CheckRoom();
  // It has been told to end a part: that is over in time.
  void CheckStop(const v1::StopPart& stop);

  World& world_;
  Network& network_;
  const int number_;
  const MachinePlan plan_;
  const ClusterMutation mutation_;
  std::string broken_;

  // One life of the agent.
  std::unique_ptr<agent::ClusterCore> core_;
  uint64_t life_ = 0;
  std::optional<ConnectionId> connection_;
  bool connected_ = false;
  bool over_ = false;
  absl::Duration back_after_;
  MonoTime timer_at_ = MonoTime::Never();

  // Of all lives, by start.
  std::map<uint64_t, Launched> launchers_;
  uint64_t starts_ = 0;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_MACHINE_H_
