#include "tests/simulation/node.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {
namespace {

// As agent/link has them.
constexpr absl::Duration kBackoffMin = absl::Milliseconds(50);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
// A look at workers that hang.
constexpr absl::Duration kLook = absl::Milliseconds(200);

}  // namespace

Node::Node(World& world, const Plan& plan, int number, Network& network, Oracle& oracle,
           std::function<void(const GenerationKey&)> worker_failed)
    : world_(world),
      plan_(plan),
      number_(number),
      me_(plan.nodes[number]),
      network_(network),
      oracle_(oracle),
      supervisor_(
          world, plan, oracle, number,
          {[this](agent::AgentEvent event) { Feed(std::move(event)); }, std::move(worker_failed)}) {
}

void Node::StartAgent() {
  if (core_ != nullptr) return;
  const bool adopts = supervisor_.Adoptable() == std::optional<uint64_t>(run_.generation.number);
  // A machine runs the next life when the last one's workers are gone.
  if (!adopts && oracle_.HasWorkers(number_)) {
    return world_.schedule.In(absl::Milliseconds(100), [this] { StartAgent(); });
  }
  const v1::JobSpec& spec = plan_.jobs[me_.job];
  agent::AgentConfig config;
  config.job = spec.name();
  if (!adopts) incarnation_ = world_.random.Next();
  config.incarnation = incarnation_;
  if (adopts) config.adopted = run_;
  config.orphan_timeout = plan_.orphan_timeout;
  config.connect_timeout = absl::Minutes(2);
  config.join.set_node(NameOfNode(number_));
  config.join.set_host(NameOfNode(number_));
  config.join.set_address(NameOfNode(number_));
  config.join.set_slots(me_.slots);
  config.join.set_wanted_node_rank(me_.wanted_rank);
  config.join.set_held_port(20000 + world_.random.Below(20000));
  *config.join.mutable_spec() = spec;
  if (me_.adopt_timeout > absl::ZeroDuration()) {
    config.join.mutable_adopt_timeout()->set_seconds(absl::ToInt64Seconds(me_.adopt_timeout));
  }
  ++life_;
  world_.Note(40, number_, [&] {
    return absl::StrCat("agent ", NameOfNode(number_), adopts ? " takes over" : " starts",
                        ", incarnation ", config.incarnation % 10000);
  });
  core_ = std::make_unique<agent::AgentCore>(std::move(config));
  comes_back_ = leaving_ = false;
  generation_started_ = adopts;
  supervisor_lives_ = true;
  inbox_.clear();
  own_events_.clear();
  timer_at_ = MonoTime::Never();
  paused_until_ = world_.now();
  backoff_ = kBackoffMin;
  Feed(agent::AgentTick{});
  if (adopts) supervisor_.Adopt();
  Connect();
}

void Node::Connect() {
  connected_ = false;
  connection_ = network_.Connect(number_, this);
}

void Node::OnUp(ConnectionId id) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  connected_ = true;
  Feed(agent::LinkUp{});
}

void Node::OnMessage(ConnectionId id, const v1::ServerMessage& message) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  if (message.has_welcome()) backoff_ = kBackoffMin;
  Feed(agent::ServerSaid{message});
}

void Node::OnDown(ConnectionId id, const absl::Status& status) {
  if (connection_ != std::optional<ConnectionId>(id)) return;
  connection_.reset();
  connected_ = false;
  world_.Note(41, number_ << 8 | static_cast<int>(status.code()), [&] {
    return absl::StrCat("agent ", NameOfNode(number_), ": link down, ", status.ToString());
  });
  const uint64_t life = life_;
  Feed(agent::LinkDown{status});
  const bool is_final = status.code() == absl::StatusCode::kUnauthenticated ||
                        status.code() == absl::StatusCode::kInvalidArgument;
  if (is_final || life != life_ || core_ == nullptr) return;
  world_.schedule.In(world_.random.Between(backoff_ / 2, backoff_), [this, life] {
    if (life == life_ && core_ != nullptr && !connection_.has_value()) Connect();
  });
  backoff_ = std::min(2 * backoff_, kBackoffMax);
}

void Node::Feed(agent::AgentEvent event) {
  if (core_ == nullptr) return;
  if (auto* progress = std::get_if<agent::WorkerProgress>(&event)) progress->at = Local();
  if (StandsStill()) {
    inbox_.push_back(std::move(event));
    return;
  }
  Run(event);
}

void Node::Run(const agent::AgentEvent& event) {
  const uint64_t life = life_;
  std::vector<agent::AgentCommand> commands = core_->Step(Local(), event);
  for (agent::AgentCommand& command : commands) Execute(std::move(command));
  while (life == life_ && core_ != nullptr && !own_events_.empty()) {
    const agent::AgentEvent own = std::move(own_events_.front());
    own_events_.pop_front();
    for (agent::AgentCommand& command : core_->Step(Local(), own)) Execute(std::move(command));
  }
  if (leaving_) return EndAgent();
  ArmTimer();
}

void Node::ArmTimer() {
  const MonoTime due = me_.clock.World(core_->NextDeadline());
  if (due >= timer_at_) return;
  timer_at_ = std::max(due, world_.now() + absl::Microseconds(1));
  world_.schedule.At(timer_at_, [this, at = timer_at_, life = life_] {
    if (life != life_ || at != timer_at_ || core_ == nullptr) return;
    timer_at_ = MonoTime::Never();
    OnTimer();
  });
}

void Node::OnTimer() {
  if (StandsStill()) return;  // looked at when it wakes
  if (core_->NextDeadline() <= Local()) return Run(agent::AgentTick{});
  ArmTimer();
}

void Node::Execute(agent::AgentCommand command) {
  if (core_ == nullptr) return;
  if (auto* send = std::get_if<agent::SendUp>(&command)) {
    if (connected_) network_.SendUp(*connection_, std::move(send->message));
  } else if (auto* start = std::get_if<agent::StartWorkers>(&command)) {
    StartWorkersOf(*start);
  } else if (auto* stop = std::get_if<agent::StopWorkers>(&command)) {
    if (!generation_started_ || !supervisor_lives_) {
      own_events_.push_back(agent::AllGone{stop->generation, 20001, stop->kept});
    } else {
      supervisor_.Stop(stop->generation, stop->grace, stop->kept);
    }
  } else if (auto* collect = std::get_if<agent::CollectEvidence>(&command)) {
    LookAtWorkers(collect->generation);
  } else if (auto* answer = std::get_if<agent::StoreAnswer>(&command)) {
    supervisor_.Answer(answer->reply);
  } else if (auto* say = std::get_if<agent::Say>(&command)) {
    world_.Note(42, number_,
                [&] { return absl::StrCat("agent ", NameOfNode(number_), " says: ", say->line); });
  } else if (auto* exit = std::get_if<agent::Exit>(&command)) {
    oracle_.AgentLeft(number_, *exit);
    leaving_ = true;
  }
}

// As the real one it takes its time, and tells of no more than who is there.
void Node::LookAtWorkers(uint64_t generation) {
  world_.schedule.In(kLook, [this, generation, life = life_] {
    if (life != life_) return;
    agent::EvidenceFound found{generation, {}};
    for (const uint32_t local_rank : supervisor_.Alive(generation)) {
      found.ranks.emplace_back().set_local_rank(static_cast<int32_t>(local_rank));
    }
    Feed(std::move(found));
    Feed(agent::EvidenceDone{generation});
  });
}

void Node::StartWorkersOf(const agent::StartWorkers& command) {
  world_.Note(43, command.generation.number, [&] {
    return absl::StrCat("agent ", NameOfNode(number_), " starts workers of generation ",
                        command.generation.number, ", ranks ", command.assign.first_rank(), "+",
                        command.assign.local_world_size(), "/", command.assign.world_size());
  });
  const GenerationKey key{command.generation.server_id, plan_.jobs[me_.job].name(),
                          command.generation.number};
  generation_started_ = supervisor_lives_;
  run_ = {command.generation, command.assign.local_world_size(), {}};
  if (supervisor_lives_) supervisor_.Start(key, command.assign, command.kept);
}

void Node::EndAgent() {
  core_.reset();
  ++life_;
  if (connection_.has_value()) network_.CloseByClient(*connection_);
  connection_.reset();
  connected_ = false;
  supervisor_.KillAll(true);
}

void Node::KillAgent(bool machine_too, absl::Duration back_after) {
  if (core_ == nullptr) return;
  world_.Note(44, number_, [&] {
    return absl::StrCat(machine_too ? "machine off: " : "agent killed: ", NameOfNode(number_));
  });
  core_.reset();
  ++life_;
  connection_.reset();
  connected_ = false;
  network_.DropClient(number_, machine_too);
  const bool kept = !machine_too && supervisor_lives_ && me_.adopt_timeout > absl::ZeroDuration() &&
                    supervisor_.Keep(me_.adopt_timeout);
  if (!kept) supervisor_.KillAll(machine_too);
  comes_back_ = world_.random.Percent(plan_.odds.comes_back);
  if (comes_back_) world_.schedule.In(back_after, [this] { StartAgent(); });
}

void Node::PauseAgent(absl::Duration lasts) {
  if (core_ == nullptr) return;
  world_.Note(45, number_, [&] {
    return absl::StrCat("agent ", NameOfNode(number_), " stands still for ",
                        absl::FormatDuration(lasts));
  });
  paused_until_ = std::max(paused_until_, world_.now() + lasts);
  // Neither does its process read or write.
  network_.Clog(number_, lasts);
  world_.schedule.At(paused_until_, [this, life = life_] {
    if (life == life_ && core_ != nullptr && !StandsStill()) Heal();
  });
}

void Node::Heal() {
  paused_until_ = std::min(paused_until_, world_.now());
  const uint64_t life = life_;
  while (life == life_ && core_ != nullptr && !inbox_.empty()) {
    const agent::AgentEvent event = std::move(inbox_.front());
    inbox_.pop_front();
    Run(event);
  }
  if (life != life_ || core_ == nullptr) return;
  timer_at_ = MonoTime::Never();
  ArmTimer();
}

void Node::KillSupervisor() {
  if (core_ == nullptr || !supervisor_lives_) return;
  world_.Note(46, number_,
              [&] { return absl::StrCat("supervisor killed: ", NameOfNode(number_)); });
  supervisor_lives_ = false;
  supervisor_.KillAll(true);
  Feed(agent::SupervisorLost{"cadre-supervisor was killed"});
}

void Node::Signal(int signal) {
  if (core_ != nullptr) Feed(agent::SignalReceived{signal});
}

}  // namespace cadre::simulation
