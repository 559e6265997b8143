#include "tests/simulation/cluster_machine.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"

namespace cadre::simulation {
namespace {

// The time from SIGKILL until nothing is left.
constexpr absl::Duration kKillTakes = absl::Milliseconds(20);
// The time from the end of an agent until another one can be there.
const absl::Duration kAgentBackMin = 2 * kKillTakes;
// How much later than an order allows the launcher may be gone.
constexpr absl::Duration kStopMargin = absl::Seconds(1);

agent::LauncherEnded EndOf(uint64_t id, const std::string& how) {
  v1::PartReport end;
  end.set_text(how);
  return {id, end};
}

}  // namespace

ClusterMachine::ClusterMachine(World& world, Network& network, int number, NodeSize size,
                               ClusterMutation mutation, ScriptBegins script_begins)
    : world_(world),
      network_(network),
      number_(number),
      size_(size),
      mutation_(mutation),
      script_begins_(std::move(script_begins)) {}

std::string ClusterMachine::Name() const { return absl::StrCat("n", number_); }

void ClusterMachine::Expect(bool holds, const std::string& what) {
  if (holds || !broken_.empty()) return;
  broken_ = absl::StrCat(Name(), ": ", what);
}

void ClusterMachine::StartAgent() {
  if (core_ != nullptr) return;
  ++life_;
  over_ = false;
  agent::ClusterCoreConfig config;
  config.node.set_node(Name());
  config.node.set_cpus(size_.cpus);
  config.node.set_gpus(size_.gpus);
  config.node.set_memory(size_.memory);
  config.incarnation = world_.random.Next() | 1;
  for (uint32_t i = 0; i < size_.gpus; ++i) config.gpus.push_back(i);
  core_ = std::make_unique<agent::ClusterCore>(std::move(config));
  timer_at_ = MonoTime::Never();
  world_.Note(1, number_, [&] { return absl::StrCat("agent ", Name(), " starts"); });
  Connect();
}

void ClusterMachine::Connect() {
  connected_ = false;
  connection_ = network_.Connect(number_, this);
}

void ClusterMachine::KillAgent(absl::Duration back_after) {
  if (core_ == nullptr) return;
  world_.Note(2, number_, [&] { return absl::StrCat("agent ", Name(), " is killed"); });
  AgentIsOver(back_after);
}

void ClusterMachine::EndAgent(absl::Duration back_after) {
  if (core_ == nullptr) return;
  back_after_ = back_after;
  Feed(agent::SignalReceived{SIGTERM});
}

void ClusterMachine::Heal() {
  world_.schedule.In(kAgentBackMin, [this] { StartAgent(); });
}

// The supervisor notices at once, kills what runs, and exits. The next agent makes its own
// directory, and does not begin before.
void ClusterMachine::AgentIsOver(absl::Duration back_after) {
  core_.reset();
  const uint64_t life = ++life_;
  if (connection_.has_value()) network_.CloseByClient(*connection_);
  connection_.reset();
  connected_ = false;
  if (mutation_ != ClusterMutation::kLeaveLaunchers) {
    for (auto& [start, launched] : launchers_) {
      launched.launcher->Kill();
      world_.schedule.In(kKillTakes, [this, start = start] { Clear(start); });
    }
  }
  world_.schedule.In(back_after + kAgentBackMin, [this, life] {
    if (life == life_) StartAgent();
  });
}

void ClusterMachine::OnUp(ConnectionId id) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  connected_ = true;
  Feed(agent::LinkUp{});
}

void ClusterMachine::OnMessage(ConnectionId id, const v1::ServerMessage& message) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  v1::ServerMessage heard = message;
  if (message.agent().has_start()) {
    ordered_[message.agent().start().part().id()] = message.agent().start();
    if (mutation_ == ClusterMutation::kForgetBatchJobs) {
      heard.mutable_agent()->mutable_start()->mutable_part()->clear_within();
    }
  }
  Feed(agent::ServerMessageReceived{heard});
  if (message.agent().has_start()) CheckRoom();
  if (message.agent().has_stop()) CheckStop(message.agent().stop());
}

void ClusterMachine::OnDown(ConnectionId id, const absl::Status& status) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  connection_.reset();
  connected_ = false;
  Feed(agent::LinkDown{status});
  world_.schedule.In(world_.random.Between(absl::Milliseconds(50), absl::Seconds(1)),
                     [this, life = life_] {
                       if (life == life_ && core_ != nullptr && !connection_) Connect();
                     });
}

void ClusterMachine::Feed(const agent::ClusterEvent& event) {
  if (core_ == nullptr) return;
  for (agent::ClusterCommand& command : core_->Step(world_.now(), event))
    Execute(std::move(command));
  if (over_ && core_ != nullptr) return AgentIsOver(back_after_);
  if (core_ != nullptr) ArmTimer();
}

void ClusterMachine::ArmTimer() {
  const MonoTime due = core_->NextDeadline();
  if (due >= timer_at_) return;
  timer_at_ = std::max(due, world_.now() + absl::Microseconds(1));
  world_.schedule.At(timer_at_, [this, at = timer_at_, life = life_] {
    if (life != life_ || at != timer_at_) return;
    timer_at_ = MonoTime::Never();
    Feed(agent::AgentTick{});
  });
}

void ClusterMachine::Execute(agent::ClusterCommand command) {
  if (core_ == nullptr) return;
  if (auto* send = std::get_if<agent::SendToServer>(&command)) {
    if (mutation_ == ClusterMutation::kForgetParts && send->message.agent().has_joined()) {
      send->message.mutable_agent()->mutable_joined()->clear_parts();
    }
    if (connected_) network_.SendToServer(*connection_, std::move(send->message));
  } else if (const auto* start = std::get_if<agent::StartLauncher>(&command)) {
    Launch(*start);
  } else if (const auto* stop = std::get_if<agent::StopLauncher>(&command)) {
    StopLaunched(*stop);
  } else if (const auto* say = std::get_if<agent::Say>(&command)) {
    world_.Note(3, number_, [&] { return absl::StrCat(Name(), " says: ", say->line); });
  } else if (std::holds_alternative<cadre::agent::EndAgent>(command)) {
    over_ = true;
  }
}

void ClusterMachine::Launch(const agent::StartLauncher& command) {
  const v1::Part& part = command.start.part();
  world_.Note(4, part.id(),
              [&] { return absl::StrCat(Name(), " starts part ", part.id(), " of ", part.job()); });
  if (!world_.calm && world_.random.Percent(2)) {
    world_.schedule.In(absl::ZeroDuration(), [this, id = part.id(), life = life_] {
      if (life == life_) Feed(agent::LauncherFailed{id, "no such user"});
    });
    return;
  }
  for (const auto& [start, launched] : launchers_) {
    Expect(launched.part.id() != part.id(), absl::StrCat("part ", part.id(), " runs twice"));
  }
  const uint64_t start = ++starts_;
  Launched& launched = launchers_[start];
  launched.part = part;
  launched.gpus = command.gpus;
  launched.start = start;
  launched.life = life_;
  launched.launcher = std::make_unique<ClusterLauncher>(
      world_, network_, number_, command.start, script_begins_,
      [this, id = part.id(), start, life = life_](const std::string& how) {
        world_.Note(5, id,
                    [&] { return absl::StrCat(Name(), ": part ", id, "'s launcher: ", how); });
        world_.schedule.In(absl::Milliseconds(1), [this, id, life, how] {
          if (life == life_) Feed(EndOf(id, how));
        });
      });
}

bool ClusterMachine::Runs(uint64_t part) const {
  return std::any_of(launchers_.begin(), launchers_.end(),
                     [&](const auto& one) { return one.second.part.id() == part; });
}

NodeShare ClusterMachine::ShareOf(const v1::Part& part, std::vector<uint32_t> gpus) const {
  const v1::StartPart& start = ordered_.at(part.id());
  NodeShare share{start.part(), start.spec().slurm_step().overlap(), std::nullopt, std::move(gpus)};
  const auto batch = ordered_.find(start.part().within());
  if (batch != ordered_.end()) share.batch = batch->second.part();
  return share;
}

void ClusterMachine::CheckRoom() {
  std::vector<NodeShare> shares;
  for (const auto& [start, launched] : launchers_) {
    shares.push_back(ShareOf(launched.part, launched.gpus));
  }
  // On held parts nothing runs; they are the agent's.
  if (core_ != nullptr) {
    for (auto& [id, gpus] : core_->Allocations()) {
      const v1::Part& part = ordered_.at(id).part();
      if (part.holds()) shares.push_back(ShareOf(part, gpus));
    }
  }
  const std::string wrong = WhatIsGivenTwice(size_, shares);
  Expect(wrong.empty(), wrong);
}

ClusterMachine::Launched* ClusterMachine::FindStart(uint64_t start) {
  const auto found = launchers_.find(start);
  return found == launchers_.end() ? nullptr : &found->second;
}

void ClusterMachine::StopLaunched(const agent::StopLauncher& command) {
  const auto found = std::find_if(launchers_.begin(), launchers_.end(), [&](const auto& launched) {
    return launched.second.part.id() == command.id && launched.second.life == life_;
  });
  if (found == launchers_.end()) return;
  const uint64_t start = found->first;
  Launched& launched = found->second;
  const bool asked = launched.launcher->lives() && command.grace > absl::ZeroDuration();
  if (asked && mutation_ == ClusterMutation::kDropStops) return;
  const bool stubborn = asked && !world_.calm && world_.random.Percent(10);
  if (asked && !stubborn) launched.launcher->Terminate();
  world_.schedule.In(asked ? command.grace : absl::ZeroDuration(), [this, start] {
    Launched* found = FindStart(start);
    if (found == nullptr) return;
    const bool lived = found->launcher->lives();
    found->launcher->Kill();
    if (lived && found->life == life_) Feed(EndOf(found->part.id(), "signal 9"));
    world_.schedule.In(kKillTakes, [this, start] { Clear(start); });
  });
}

void ClusterMachine::Clear(uint64_t start) {
  Launched* found = FindStart(start);
  if (found == nullptr) return;
  const uint64_t id = found->part.id(), life = found->life;
  launchers_.erase(start);
  if (life == life_) Feed(agent::AllocationGone{id});
}

void ClusterMachine::CheckStop(const v1::StopPart& stop) {
  const auto ordered = ordered_.find(stop.id());
  if (core_ != nullptr && ordered != ordered_.end() && ordered->second.part().holds()) {
    Expect(core_->Allocations().count(stop.id()) == 0,
           absl::StrCat("part ", stop.id(), " is still held after the order to end it"));
  }
  for (const auto& [start, launched] : launchers_) {
    if (launched.part.id() != stop.id()) continue;
    const absl::Duration limit = FromProto(stop.after()) + FromProto(stop.grace()) + kStopMargin;
    world_.schedule.In(limit, [this, start = start, id = stop.id(), limit] {
      Expect(FindStart(start) == nullptr,
             absl::StrCat("part ", id, " still runs ", absl::FormatDuration(limit),
                          " after the order to end it"));
    });
  }
}

namespace {

constexpr uint32_t kPort = 20001;
constexpr int kFirstPid = 1000;

}  // namespace

ClusterLauncher::ClusterLauncher(World& world, Network& network, int machine,
                                 const v1::StartPart& start, const ScriptBegins& script_begins,
                                 std::function<void(std::string how)> ended)
    : world_(world),
      network_(network),
      machine_(machine),
      start_(start),
      script_begins_(script_begins),
      ended_(std::move(ended)) {
  agent::AgentConfig config;
  config.job = start.part().job();
  config.incarnation = world_.random.Next() | 1;
  config.join.set_node(start.part().node());
  config.join.set_host(start.part().node());
  config.join.set_address("10.0.0.1");
  config.join.set_slots(start.spec().has_batch() ? 1 : start.part().workers());
  config.join.set_part(start.part().id());
  config.join.set_held_port(kPort);
  core_ = std::make_unique<agent::AgentCore>(std::move(config));
  // The process takes a moment to start.
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
  if (connection_ == std::optional<ConnectionId>(id)) Feed(agent::ServerMessageReceived{message});
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
  if (auto* send = std::get_if<agent::SendToServer>(&command)) {
    if (connected_) network_.SendToServer(*connection_, std::move(send->message));
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
  // All workers of a part run for the same time.
  const bool is_script = start_.spec().has_batch();
  const absl::Duration takes =
      world_.random.Between(absl::Seconds(1), absl::Seconds(is_script ? 60 : 20));
  if (is_script) script_begins_(start_, takes);
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
