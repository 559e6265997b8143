#include "tests/simulation/cluster_launcher.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {
namespace {

constexpr uint32_t kPort = 20001;
constexpr int kFirstPid = 1000;

}  // namespace

ClusterLauncher::ClusterLauncher(World& world, Network& network, int machine,
                                 const v1::StartPart& start,
                                 std::function<void(std::string how)> ended)
    : world_(world), network_(network), machine_(machine), ended_(std::move(ended)) {
  agent::AgentConfig config;
  config.job = start.part().job();
  config.incarnation = world_.random.Next() | 1;
  config.join.set_node(start.part().node());
  config.join.set_host(start.part().node());
  config.join.set_address("10.0.0.1");
  config.join.set_slots(start.part().workers());
  config.join.set_part(start.part().id());
  config.join.set_held_port(kPort);
  core_ = std::make_unique<agent::AgentCore>(std::move(config));
  // It takes a moment to start.
  In(world_.random.Between(absl::Milliseconds(5), absl::Milliseconds(200)), [this] {
    Connect();
    Feed(agent::AgentTick{});
  });
}

ClusterLauncher::~ClusterLauncher() {
  *here_ = false;
  if (connection_.has_value()) network_.CloseByClient(*connection_);
}

void ClusterLauncher::In(absl::Duration delay, std::function<void()> what) {
  world_.schedule.In(delay, [here = here_, this, what = std::move(what)] {
    if (*here && core_ != nullptr) what();
  });
}

void ClusterLauncher::Terminate() {
  if (lives()) Feed(agent::SignalReceived{SIGTERM});
}

void ClusterLauncher::Kill() {
  core_.reset();
  if (connection_.has_value()) network_.CloseByClient(*connection_);
  connection_.reset();
}

void ClusterLauncher::Connect() {
  connected_ = false;
  connection_ = network_.Connect(machine_, this);
}

void ClusterLauncher::OnUp(ConnectionId id) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  connected_ = true;
  Feed(agent::LinkUp{});
}

void ClusterLauncher::OnMessage(ConnectionId id, const v1::ServerMessage& message) {
  if (connection_ == std::optional<ConnectionId>(id)) Feed(agent::ServerSaid{message});
}

void ClusterLauncher::OnDown(ConnectionId id, const absl::Status& status) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  connection_.reset();
  connected_ = false;
  Feed(agent::LinkDown{status});
  In(world_.random.Between(absl::Milliseconds(50), absl::Seconds(1)), [this] {
    if (!connection_.has_value()) Connect();
  });
}

void ClusterLauncher::Feed(const agent::AgentEvent& event) {
  if (core_ == nullptr) return;
  own_events_.push_back(event);
  if (feeding_) return;
  feeding_ = true;
  while (!own_events_.empty() && !exit_.has_value()) {
    const agent::AgentEvent next = std::move(own_events_.front());
    own_events_.pop_front();
    for (agent::AgentCommand& command : core_->Step(world_.now(), next))
      Execute(std::move(command));
  }
  feeding_ = false;
  if (exit_.has_value()) return End(absl::StrCat("exit status ", *exit_));
  ArmTimer();
}

void ClusterLauncher::ArmTimer() {
  const MonoTime due = core_->NextDeadline();
  if (due >= timer_at_) return;
  timer_at_ = std::max(due, world_.now() + absl::Microseconds(1));
  In(timer_at_ - world_.now(), [this, at = timer_at_] {
    if (at != timer_at_) return;
    timer_at_ = MonoTime::Never();
    Feed(agent::AgentTick{});
  });
}

void ClusterLauncher::Execute(agent::AgentCommand command) {
  if (auto* send = std::get_if<agent::SendUp>(&command)) {
    if (connected_) network_.SendUp(*connection_, std::move(send->message));
  } else if (const auto* start = std::get_if<agent::StartWorkers>(&command)) {
    StartWorkersOf(*start);
  } else if (const auto* stop = std::get_if<agent::StopWorkers>(&command)) {
    StopWorkersOf(*stop);
  } else if (const auto* exit = std::get_if<agent::Exit>(&command)) {
    exit_ = exit->status;
  }
}

void ClusterLauncher::StartWorkersOf(const agent::StartWorkers& command) {
  generation_ = command.generation.number;
  alive_.clear();
  // All of a job do the same.
  const absl::Duration takes = world_.random.Between(absl::Seconds(1), absl::Seconds(20));
  for (uint32_t i = 0; i < command.assign.local_world_size(); ++i) {
    alive_.insert(i);
    In(absl::Milliseconds(20), [this, i, generation = generation_] {
      if (generation == generation_ && alive_.count(i) != 0) {
        Feed(agent::WorkerRuns{generation, i, kFirstPid + static_cast<int>(i)});
      }
    });
    In(takes, [this, i, generation = generation_] {
      if (generation != generation_ || alive_.erase(i) == 0) return;
      v1::WorkerExit exit;
      if (!world_.calm && world_.random.Percent(5)) exit.set_exit_code(1);
      Feed(agent::WorkerDied{generation, i, exit});
    });
  }
}

void ClusterLauncher::StopWorkersOf(const agent::StopWorkers& command) {
  const absl::Duration takes = world_.random.Between(
      absl::Milliseconds(1), std::max(command.grace, absl::Duration(absl::Milliseconds(20))));
  In(takes, [this, generation = command.generation] {
    if (generation != generation_) return;
    for (const uint32_t local_rank : std::exchange(alive_, {})) {
      v1::WorkerExit exit;
      exit.set_signal(SIGTERM);
      Feed(agent::WorkerDied{generation, local_rank, exit});
    }
    Feed(agent::AllGone{generation, kPort});
  });
}

void ClusterLauncher::End(const std::string& how) {
  Kill();
  const auto ended = ended_;
  ended(how);
}

}  // namespace cadre::simulation
