#include "tests/simulation/cluster_machine.h"

#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"

namespace cadre::simulation {
namespace {

// From SIGKILL until nothing is left.
constexpr absl::Duration kKillTakes = absl::Milliseconds(20);
// From the end of an agent until another one can be there.
const absl::Duration kAgentBackMin = 2 * kKillTakes;
// Beyond what an order allows, until what it is about is gone.
constexpr absl::Duration kStopMargin = absl::Seconds(1);

agent::LauncherEnded EndOf(uint64_t id, const std::string& how) {
  v1::PartReport end;
  end.set_text(how);
  return {id, end};
}

}  // namespace

ClusterMachine::ClusterMachine(World& world, Network& network, int number, MachinePlan plan,
                               ClusterMutation mutation)
    : world_(world), network_(network), number_(number), plan_(plan), mutation_(mutation) {}

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
  config.node.set_cpus(plan_.cpus);
  config.node.set_gpus(plan_.gpus);
  config.incarnation = world_.random.Next() | 1;
  for (uint32_t i = 0; i < plan_.gpus; ++i) config.gpus.push_back(i);
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

// Its supervisor notices at once, kills what there is, and leaves. The next agent makes a directory
// of its own, and does not begin before.
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
  Feed(agent::ServerSaid{message});
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
  if (auto* send = std::get_if<agent::SendUp>(&command)) {
    if (mutation_ == ClusterMutation::kForgetParts && send->message.agent().has_joined()) {
      send->message.mutable_agent()->mutable_joined()->clear_parts();
    }
    if (connected_) network_.SendUp(*connection_, std::move(send->message));
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
      world_, network_, number_, command.start,
      [this, id = part.id(), start, life = life_](const std::string& how) {
        world_.Note(5, id,
                    [&] { return absl::StrCat(Name(), ": part ", id, "'s launcher: ", how); });
        world_.schedule.In(absl::Milliseconds(1), [this, id, life, how] {
          if (life == life_) Feed(EndOf(id, how));
        });
      });
  CheckRoom();
}

void ClusterMachine::CheckRoom() {
  uint32_t cpus = 0;
  std::set<uint32_t> gpus;
  for (const auto& [start, launched] : launchers_) {
    cpus += launched.part.cpus();
    Expect(launched.gpus.size() == launched.part.gpus(), "a part has not the GPUs it was to have");
    for (const uint32_t gpu : launched.gpus) {
      Expect(gpu < plan_.gpus && gpus.insert(gpu).second,
             absl::StrCat("GPU ", gpu, " given twice"));
    }
  }
  Expect(cpus <= plan_.cpus, absl::StrCat(cpus, " CPUs of ", plan_.cpus, " are in use"));
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
  if (life == life_) Feed(agent::PartGone{id});
}

void ClusterMachine::CheckStop(const v1::StopPart& stop) {
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

}  // namespace cadre::simulation
