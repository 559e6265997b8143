// One node: the real agent core, driven as agent/daemon drives it, with a link that behaves as
// agent/link, and a supervisor. Its agent dies, stands still and comes back as another life.
// One thread.
#ifndef CADRE_TESTS_SIMULATION_NODE_H_
#define CADRE_TESTS_SIMULATION_NODE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "agent/core/agent_core.h"
#include "tests/simulation/network.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/supervisor.h"

namespace cadre::simulation {

class Node final : public StreamClient {
 public:
  Node(World& world, const Plan& plan, int number, Network& network, Oracle& oracle,
       std::function<void(const GenerationKey&)> worker_failed);

  void StartAgent();
  // Its process dies at once; with the machine, or alone.
  void KillAgent(bool machine_too, absl::Duration back_after);
  void PauseAgent(absl::Duration lasts);
  void KillSupervisor();
  void Signal(int signal);
  void Heal();

  // No agent runs, and none will come.
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
  void LookAtWorkers(uint64_t generation);
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
  std::deque<agent::AgentEvent> inbox_;       // what waits while the agent stands still
  std::deque<agent::AgentEvent> own_events_;  // what carrying out a command led to
  MonoTime paused_until_;
  MonoTime timer_at_ = MonoTime::Never();
  bool supervisor_lives_ = false;
  bool generation_started_ = false;
  uint64_t incarnation_ = 0;
  // What the agent would carry on that comes after this one: its generation was started.
  agent::AdoptedWorkers run_;
  std::optional<ConnectionId> connection_;
  bool connected_ = false;
  absl::Duration backoff_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_NODE_H_
