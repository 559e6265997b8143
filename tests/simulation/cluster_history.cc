#include "tests/simulation/cluster_history.h"

#include <signal.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "rendezvous/core/core.h"
#include "tests/simulation/plan.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kTrouble = absl::Seconds(120);
// Every job has to end within this time after the faults have stopped.
constexpr absl::Duration kPeace = absl::Minutes(60);
// From the end of the last job until nothing is left: stop margin, grace and launcher's margin.
constexpr absl::Duration kAftermath = absl::Seconds(60);

class ClusterHistory final : public StreamServer {
 public:
  ClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines) : world_(seed) {
    if (keep_lines) world_.trace.KeepLines();
    const int machines = world_.random.Between(2, 5);
    plan_.nodes.resize(machines);
    plan_.odds.delay_min = absl::Microseconds(100);
    plan_.odds.delay_max = world_.random.Percent(30) ? absl::Seconds(1) : absl::Milliseconds(5);
    plan_.odds.retransmit = world_.random.Percent(30) ? 10 : 0;
    network_ = std::make_unique<Network>(world_, plan_);
    network_->set_server(this);
    for (int i = 0; i < machines; ++i) {
      MachinePlan plan;
      plan.cpus = world_.random.Between(2, 8);
      plan.gpus = world_.random.Between(0, 4);
      machines_.push_back(std::make_unique<ClusterMachine>(world_, *network_, i, plan, mutation));
    }
  }

  ClusterResult Run() {
    StartServer();
    for (const auto& machine : machines_) {
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), absl::Seconds(3)),
                         [&machine] { machine->StartAgent(); });
    }
    PlanUsers();
    PlanFaults();
    RunUntil(MonoTime() + kTrouble, [] { return false; });
    Heal();
    const bool ended = RunUntil(world_.now() + kPeace, [this] { return AllEnded(); });
    if (broken_.empty() && !ended) broken_ = absl::StrCat("not every job has ended: ", Waiting());
    const bool empty = RunUntil(world_.now() + kAftermath, [this] {
      return std::all_of(machines_.begin(), machines_.end(),
                         [](const auto& machine) { return machine->idle(); });
    });
    if (broken_.empty() && !empty) broken_ = "something runs on after every job has ended";
    return Result();
  }

  // --- StreamServer ---
  bool Listens() const override { return core_ != nullptr; }
  bool StandsStill() const override { return false; }
  void OnOpened(ConnectionId, int) override {}
  void OnMessage(ConnectionId id, const v1::NodeMessage& message) override {
    Step(NodeMessageReceived{StreamId{id}, message});
  }
  void OnClosed(ConnectionId id) override { Step(StreamClosed{StreamId{id}}); }

 private:
  void StartServer() {
    if (core_ != nullptr) return;
    core_ = std::make_unique<Core>(CoreConfig());
    for (const v1::Record& record : records_) core_->Apply(record);
    timer_at_ = MonoTime::Never();
    Step(Tick{});
  }

  void KillServer(absl::Duration back_after) {
    if (core_ == nullptr) return;
    world_.Note(10, 0, [] { return "the server is killed"; });
    network_->DropServer();
    core_.reset();
    world_.schedule.In(back_after, [this] { StartServer(); });
  }

  void Step(const Event& event) {
    if (core_ == nullptr) return;
    const Effects effects = core_->Step(world_.now(), event);
    records_.insert(records_.end(), effects.append.begin(), effects.append.end());
    for (const SendToStream& send : effects.send) {
      network_->SendDown(send.stream.value, send.message);
    }
    for (const cadre::CloseStream& close : effects.close) {
      network_->CloseByServer(close.stream.value, close.status);
    }
    for (const cadre::Note& note : effects.notes) {
      world_.Note(11, 0, [&] { return absl::StrCat("server: ", note.job, ": ", note.text); });
    }
    const absl::Status holds = core_->CheckInvariants();
    if (!holds.ok() && broken_.empty()) broken_ = std::string(holds.message());
    ArmTimer();
  }

  void ArmTimer() {
    const MonoTime due = core_->NextDeadline();
    if (due >= timer_at_) return;
    timer_at_ = std::max(due, world_.now() + absl::Microseconds(1));
    world_.schedule.At(timer_at_, [this, at = timer_at_] {
      if (core_ == nullptr || at != timer_at_) return;
      timer_at_ = MonoTime::Never();
      Step(Tick{});
    });
  }

  v1::JobSpec DrawJob(int number) {
    v1::JobSpec spec;
    spec.set_name(absl::StrCat("j", number));
    spec.add_command("./train");
    const int most = static_cast<int>(machines_.size());
    spec.mutable_nodes()->set_min(world_.random.Between(1, most));
    spec.mutable_nodes()->set_max(spec.nodes().min());
    if (world_.random.Percent(40)) {
      spec.mutable_nodes()->set_max(world_.random.Between(spec.nodes().min(), most));
      spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
    }
    spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec.mutable_workers_per_node()->set_count(world_.random.Between(1, 2));
    if (world_.random.Percent(40)) spec.mutable_resources()->set_gpus_per_worker(1);
    spec.mutable_timeouts()->mutable_stop_grace()->set_seconds(world_.random.Between(1, 5));
    spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(300);
    spec.mutable_restart()->set_max(world_.random.Between(0, 5));
    spec.set_priority(world_.random.Between(0, 2));
    return spec;
  }

  void PlanUsers() {
    const int jobs = world_.random.Between(3, 10);
    for (int i = 0; i < jobs; ++i) {
      const v1::JobSpec spec = DrawJob(world_.random.Below(jobs));
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble), [this, spec] {
        if (core_ == nullptr || !core_->MaySubmit(spec, "ann").ok()) return;
        Step(JobSubmitted{spec, "ann", ""});
        submitted_[spec.name()] = spec;
      });
      if (!world_.random.Percent(30)) continue;
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble), [this, spec] {
        Step(JobCancelled{spec.name(), "no need"});
      });
    }
    for (int i = world_.random.Below(4); i > 0; --i) {
      const std::string node = machines_[Machine()]->Name();
      const absl::Duration at = world_.random.Between(absl::ZeroDuration(), kTrouble);
      world_.schedule.In(at, [this, node] { Step(NodeDrained{node, true, "fan"}); });
      drained_.insert(node);
    }
  }

  int Machine() { return world_.random.Below(static_cast<int>(machines_.size())); }

  void PlanFaults() {
    // Each history has its own selection of faults, since a fault that is always present hides what
    // others would show.
    std::vector<std::function<void(absl::Duration lasts)>> faults;
    const auto may = [&](std::function<void(absl::Duration)> fault) {
      if (world_.random.Percent(50)) faults.push_back(std::move(fault));
    };
    may([this](absl::Duration) { network_->Reset(Machine()); });
    may([this](absl::Duration lasts) { network_->Cut(Machine(), true, false, lasts); });
    may([this](absl::Duration lasts) { network_->Cut(Machine(), false, true, lasts); });
    may([this](absl::Duration lasts) { network_->Clog(Machine(), lasts); });
    may([this](absl::Duration lasts) {
      ++agents_lost_;
      machines_[Machine()]->KillAgent(lasts);
    });
    may([this](absl::Duration lasts) { machines_[Machine()]->EndAgent(lasts); });
    may([this](absl::Duration lasts) { KillServer(lasts); });
    if (faults.empty()) return;
    for (int i = world_.random.Below(25); i > 0; --i) {
      const auto fault = faults[world_.random.Below(static_cast<int>(faults.size()))];
      const absl::Duration lasts =
          world_.random.Percent(60) ? world_.random.Between(absl::Milliseconds(1), absl::Seconds(2))
                                    : world_.random.Between(absl::Seconds(2), absl::Seconds(40));
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble),
                         [fault, lasts] { fault(lasts); });
    }
  }

  void Heal() {
    world_.calm = true;
    network_->Heal();
    StartServer();
    for (const auto& machine : machines_) machine->Heal();
    for (const std::string& node : drained_) Step(NodeDrained{node, false, ""});
  }

  bool AllEnded() {
    if (core_ == nullptr) return false;
    const auto jobs = core_->AllStatuses(world_.now());
    return std::all_of(jobs.begin(), jobs.end(), [this](const v1::JobStatus& job) {
      if (job.has_verdict()) return true;
      // A job that fits nowhere stays queued for ever, and Explain() gives the reason.
      return job.phase() == v1::QUEUED && !FitsSomewhere(submitted_.at(job.name())) &&
             !core_->Explain(world_.now(), job.name()).value_or("").empty();
    });
  }

  // Whether the machines are large enough, whatever is allocated now. A worker takes a CPU.
  bool FitsSomewhere(const v1::JobSpec& spec) const {
    const uint32_t workers = spec.workers_per_node().count();
    const uint32_t gpus = workers * spec.resources().gpus_per_worker();
    const auto large_enough =
        std::count_if(machines_.begin(), machines_.end(), [&](const auto& machine) {
          return machine->plan().cpus >= workers && machine->plan().gpus >= gpus;
        });
    return static_cast<uint32_t>(large_enough) >= spec.nodes().min();
  }

  std::string Waiting() {
    std::string text;
    for (const v1::JobStatus& job : core_->AllStatuses(world_.now())) {
      if (!job.has_verdict()) {
        absl::StrAppend(&text, job.name(), ": ",
                        core_->Explain(world_.now(), job.name()).value_or(""), "; ");
      }
    }
    return text;
  }

  // Returns false if time ran out.
  bool RunUntil(MonoTime end, const std::function<bool()>& holds) {
    for (MonoTime look = world_.now(); broken_.empty();) {
      // The check costs more than an event, so it runs once a second.
      if (world_.now() >= look) {
        if (holds()) return true;
        look = world_.now() + absl::Seconds(1);
      }
      if (!world_.schedule.RunNext(end)) return false;
      for (const auto& machine : machines_) {
        if (broken_.empty()) broken_ = machine->broken();
      }
    }
    return false;
  }

  ClusterResult Result() {
    ClusterResult result;
    result.broken = broken_;
    result.hash = world_.trace.hash();
    result.events = world_.schedule.events();
    result.agents_lost = agents_lost_;
    result.lines = world_.trace.lines();
    if (core_ == nullptr) return result;
    for (const v1::JobStatus& job : core_->AllStatuses(world_.now())) {
      result.succeeded += job.phase() == v1::SUCCEEDED;
      result.failed += job.phase() == v1::FAILED;
      result.cancelled += job.phase() == v1::CANCELLED_PHASE;
    }
    for (const auto& [name, spec] : submitted_) {
      if (!core_->Status(world_.now(), name).ok() && result.broken.empty()) {
        result.broken = absl::StrCat("job ", name, " is lost");
      }
    }
    return result;
  }

  World world_;
  Plan plan_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Core> core_;
  std::vector<v1::Record> records_;
  std::vector<std::unique_ptr<ClusterMachine>> machines_;
  // The specs as they were last accepted, by name.
  std::map<std::string, v1::JobSpec> submitted_;
  std::set<std::string> drained_;
  MonoTime timer_at_ = MonoTime::Never();
  int agents_lost_ = 0;
  std::string broken_;
};

}  // namespace

ClusterResult RunClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines) {
  return ClusterHistory(seed, mutation, keep_lines).Run();
}

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
  Feed(agent::ServerMessageReceived{message});
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
  if (life == life_) Feed(agent::AllocationGone{id});
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
