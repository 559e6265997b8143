// The launcher of one part on a simulated machine: the real core of its agent, with scripted
// workers. One thread.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_LAUNCHER_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_LAUNCHER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "agent/core/agent_core.h"
#include "proto/cluster.pb.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class ClusterLauncher final : public StreamClient {
 public:
  // `ended` is told once, when the process ends by itself; it may leave workers behind. Machines
  // are the network's nodes.
  ClusterLauncher(World& world, Network& network, int machine, const v1::StartPart& start,
                  std::function<void(std::string how)> ended);
  ~ClusterLauncher() override;

  // SIGTERM.
  void Terminate();
  // SIGKILL, of whatever is left.
  void Kill();
  bool lives() const { return core_ != nullptr; }

  void OnUp(ConnectionId id) override;
  void OnMessage(ConnectionId id, const v1::ServerMessage& message) override;
  void OnDown(ConnectionId id, const absl::Status& status) override;

 private:
  void Connect();
  // After that long, unless it has ended by then.
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
  // What is scheduled for it looks here first.
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

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_LAUNCHER_H_
