#include "tests/simulation/node.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/frames.h"

namespace cadre::simulation {
namespace {

// The values that agent/link uses.
constexpr absl::Duration kBackoffMin = absl::Milliseconds(50);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
// How long the hang diagnosis of a node's workers takes.
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
  // A machine runs the next life only when the last one's workers are gone.
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
  Feed(agent::ServerMessageReceived{message});
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
  if (StandsStill()) return;  // Heal() runs what is due when the agent wakes
  if (core_->NextDeadline() <= Local()) return Run(agent::AgentTick{});
  ArmTimer();
}

void Node::Execute(agent::AgentCommand command) {
  if (core_ == nullptr) return;
  if (auto* send = std::get_if<agent::SendToServer>(&command)) {
    if (connected_) network_.SendToServer(*connection_, std::move(send->message));
  } else if (auto* start = std::get_if<agent::StartWorkers>(&command)) {
    StartWorkersOf(*start);
  } else if (auto* stop = std::get_if<agent::StopWorkers>(&command)) {
    if (!generation_started_ || !supervisor_lives_) {
      own_events_.push_back(agent::AllGone{stop->generation, 20001, stop->kept});
    } else {
      supervisor_.Stop(stop->generation, stop->grace, stop->kept);
    }
  } else if (auto* collect = std::get_if<agent::CollectEvidence>(&command)) {
    ProbeWorkers(collect->generation);
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

// Like the real diagnosis it takes time, and reports only workers that are alive.
void Node::ProbeWorkers(uint64_t generation) {
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
                    supervisor_.KeepWorkers(me_.adopt_timeout);
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
  // The paused process neither reads nor writes.
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

Supervisor::Supervisor(World& world, const Plan& plan, Oracle& oracle, int node, Host host)
    : world_(world),
      plan_(plan),
      oracle_(oracle),
      node_(node),
      host_(std::move(host)),
      in_place_(plan.jobs[plan.nodes[node].job].restart().in_place()) {}

Supervisor::Worker* Supervisor::Find(uint64_t id) {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : &found->second;
}

void Supervisor::Later(absl::Duration delay, uint64_t id, std::function<void(Worker&)> what) {
  const Worker* now = Find(id);
  if (now == nullptr) return;
  world_.schedule.In(delay, [this, id, life = now->life, what = std::move(what)] {
    Worker* worker = Find(id);
    if (worker != nullptr && worker->life == life) what(*worker);
  });
}

void Supervisor::Start(const GenerationKey& generation, const v1::Assign& assign,
                       const std::set<uint32_t>& kept) {
  oracle_.WorkersStart(node_, generation, assign);
  for (uint32_t i = 0; i < assign.local_world_size(); ++i) {
    if (kept.count(i) != 0) {
      Continue(generation, assign, i);
    } else {
      StartFresh(generation, assign, i);
    }
  }
}

void Supervisor::StartFresh(const GenerationKey& generation, const v1::Assign& assign,
                            uint32_t local_rank) {
  const uint64_t id = ++last_worker_;
  Worker& worker = workers_[id];
  worker.generation = generation;
  worker.local_rank = local_rank;
  worker.rank = assign.first_rank() + local_rank;
  worker.world_size = assign.world_size();
  Draw(worker);
  Script(worker, world_.random.Next());
  generations_[generation.number].alive.insert(id);
  Later(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(30)), id,
        [this, id](Worker& started) { Begin(id, started); });
}

// A process that waits takes its place in the new generation.
void Supervisor::Continue(const GenerationKey& generation, const v1::Assign& assign,
                          uint32_t local_rank) {
  for (auto& [id, worker] : workers_) {
    if (!worker.told || !worker.gave_up || worker.local_rank != local_rank) continue;
    const auto before = generations_.find(worker.generation.number);
    if (before != generations_.end() && before->second.alive.erase(id) > 0 &&
        before->second.alive.empty()) {
      generations_.erase(before);
    }
    ++worker.life;
    worker.gave_up = false;
    worker.generation = generation;
    worker.rank = assign.first_rank() + local_rank;
    worker.world_size = assign.world_size();
    worker.next = 0;
    worker.to_ask.clear();
    worker.ends = Ends::kWell;
    Draw(worker);
    if (worker.ends == Ends::kNotStarted) worker.ends = Ends::kWell;
    Script(worker, world_.random.Next());
    generations_[generation.number].alive.insert(id);
    return Later(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(30)), id,
                 [this, id = id](Worker& rejoined) { Begin(id, rejoined); });
  }
  // The process died just before, and its agent learns of it only now.
  oracle_.WorkerGone(generation, assign.first_rank() + local_rank);
  oracle_.Worker(generation, assign.first_rank() + local_rank).failed = true;
  oracle_.Worker(generation, assign.first_rank() + local_rank).signal = SIGKILL;
  v1::WorkerExit exit;
  exit.set_signal(SIGKILL);
  world_.schedule.In(absl::Microseconds(50), [this, generation, local_rank, exit] {
    host_.send_event(agent::WorkerDied{generation.number, local_rank, exit});
  });
}

std::vector<uint32_t> Supervisor::Alive(uint64_t generation) const {
  std::vector<uint32_t> alive;
  const auto found = generations_.find(generation);
  if (found == generations_.end()) return alive;
  for (const uint64_t id : found->second.alive) alive.push_back(workers_.at(id).local_rank);
  return alive;
}

void Supervisor::End(uint64_t id, int code, int signal, bool by_itself) {
  v1::WorkerExit exit;
  exit.set_exit_code(code);
  exit.set_signal(signal);
  EndWithExit(id, std::move(exit), by_itself);
}

void Supervisor::EndWithExit(uint64_t id, v1::WorkerExit exit, bool by_itself) {
  const Worker worker = std::move(*Find(id));
  workers_.erase(id);
  exit.set_pid(static_cast<int32_t>(id));
  WorkerTruth& truth = oracle_.Worker(worker.generation, worker.rank);
  const bool fails = exit.exit_code() != 0 || exit.signal() != 0 || exit.exec_errno() != 0;
  if (by_itself) {
    truth.succeeded = !fails;
    truth.failed = fails;
    truth.code = exit.exit_code();
    truth.signal = exit.signal();
  }
  oracle_.WorkerGone(worker.generation, worker.rank);
  world_.Note(31, worker.rank << 16 | exit.exit_code() << 8 | exit.signal(), [&] {
    return absl::StrCat("rank ", worker.rank, " of ", worker.generation.Text(), " on ",
                        NameOfNode(node_), " ends: ", exit.ShortDebugString());
  });
  if (worker.told) {
    // The agent's reaction may change generations_ before send_event() returns.
    const auto found = generations_.find(worker.generation.number);
    if (found != generations_.end()) {
      found->second.alive.erase(id);
      found->second.exits[worker.local_rank] = exit;
    }
    host_.send_event(
        agent::WorkerDied{worker.generation.number, worker.local_rank, std::move(exit)});
    Advance(worker.generation.number);
  }
  if (by_itself && fails) host_.failed(worker.generation);
}

void Supervisor::Stop(uint64_t number, absl::Duration grace, const std::set<uint32_t>& kept) {
  const auto found = generations_.find(number);
  if (found == generations_.end()) {
    if (gone_.count(number) == 0) {
      gone_.insert(number);
      world_.schedule.In(absl::Microseconds(50), [this, number, kept] {
        host_.send_event(agent::AllGone{number, 0, kept});
      });
    }
    return;
  }
  Generation& generation = found->second;
  const MonoTime kill_at = world_.now() + grace;
  for (const uint64_t id : generation.alive) {
    Worker& worker = *Find(id);
    if (kept.count(worker.local_rank) != 0) {
      // A few workers do not give up their generation.
      if (world_.calm || world_.random.Percent(90)) {
        Later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(300)), id,
              [this, id](Worker&) { GiveUp(id); });
      }
      continue;
    }
    const bool term =
        !generation.stopping && grace > absl::ZeroDuration() && !worker.ignores_sigterm;
    if (term) {
      Later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(100)), id,
            [this, id](Worker&) { End(id, 0, SIGTERM, false); });
    }
    if (kill_at < generation.kill_at || generation.kept.count(worker.local_rank) != 0) {
      Later(grace + world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(5)), id,
            [this, id](Worker&) { End(id, 0, SIGKILL, false); });
    }
  }
  generation.kill_at = std::min(generation.kill_at, kill_at);
  generation.kept = kept;
  generation.stopping = true;
  generation.gone_is_due = false;
  Advance(number);
}

bool Supervisor::OnlyKeptAreLeft(const Generation& generation) const {
  return std::all_of(generation.alive.begin(), generation.alive.end(), [&](uint64_t id) {
    return generation.kept.count(workers_.at(id).local_rank) != 0;
  });
}

void Supervisor::Advance(uint64_t number) {
  const auto found = generations_.find(number);
  if (found == generations_.end() || !found->second.stopping || !OnlyKeptAreLeft(found->second) ||
      std::exchange(found->second.gone_is_due, true)) {
    return;
  }
  const absl::Duration sweep = world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(20));
  world_.schedule.In(sweep, [this, number, kept = found->second.kept] {
    const auto swept = generations_.find(number);
    if (swept == generations_.end() || swept->second.kept != kept) return;
    if (swept->second.alive.empty()) {
      generations_.erase(swept);
      gone_.insert(number);
    }
    if (alone_ != 0 && generations_.empty()) return KillAll(true);
    const uint32_t port = 20000 + static_cast<uint32_t>(world_.random.Below(20000));
    host_.send_event(agent::AllGone{number, port, kept});
  });
}

bool Supervisor::KeepWorkers(absl::Duration time) {
  if (generations_.empty()) return false;
  alone_ = ++times_alone_;
  gone_by_ = world_.now() + time + supervisor::kShutDownLimit;
  world_.schedule.In(time, [this, time_alone = alone_] {
    if (alone_ == time_alone) KillAll(false);
  });
  return true;
}

std::optional<uint64_t> Supervisor::Adoptable() const {
  if (alone_ == 0) return std::nullopt;
  return generations_.rbegin()->first;
}

void Supervisor::Adopt() {
  oracle_.CountAdoption();
  alone_ = 0;
  gone_by_ = world_.now();
  const auto& [number, generation] = *generations_.rbegin();
  for (const uint64_t id : generation.alive) {
    const Worker& worker = workers_.at(id);
    if (worker.running) {
      host_.send_event(agent::WorkerRuns{number, worker.local_rank, static_cast<int32_t>(id)});
    }
    if (worker.progress.has_value())
      host_.send_event(agent::WorkerProgress{number, *worker.progress, {}});
    // Requests that were not answered are sent again.
    if (worker.waits) host_.send_event(agent::StoreRequested{worker.to_ask[worker.next]});
  }
  const std::map<uint32_t, v1::WorkerExit> exits = generation.exits;
  for (const auto& [local_rank, exit] : exits)
    host_.send_event(agent::WorkerDied{number, local_rank, exit});
}

void Supervisor::KillAll(bool at_once) {
  alone_ = 0;
  generations_.clear();
  gone_.clear();
  gone_by_ = world_.now() + (at_once ? absl::ZeroDuration() : supervisor::kShutDownLimit);
  std::vector<uint64_t> ids;
  for (auto& [id, worker] : workers_) {
    worker.told = false;
    ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    if (at_once) {
      End(id, 0, SIGKILL, false);
      continue;
    }
    Later(world_.random.Between(absl::ZeroDuration(), supervisor::kShutDownLimit), id,
          [this, id](Worker&) { End(id, 0, SIGKILL, false); });
  }
}

// What a supervisor's scripted workers do: they meet, call the store, report progress, hang, fail,
// and give up.

namespace {

// A wait of the store that is longer than any worker works.
constexpr uint32_t kWaitMs = 60000;
constexpr int kExitPeerDied = 1;
constexpr int kExitStoreFailed = 3;
constexpr int kExitNever = 93;

v1::StoreRequest RequestOf(const GenerationKey& generation, uint32_t rank, uint64_t client) {
  v1::StoreRequest request;
  request.set_job(generation.job);
  request.set_generation(generation.number);
  request.set_rank(static_cast<int32_t>(rank));
  request.set_client(client);
  request.set_wait_ms(kWaitMs);
  return request;
}

}  // namespace

void Supervisor::Draw(Worker& worker) {
  if (world_.calm) return;
  const Odds& odds = plan_.odds;
  Random& random = world_.random;
  if (in_place_) worker.can_rejoin = random.Percent(85);
  worker.ignores_sigterm = random.Percent(odds.worker_ignores_sigterm);
  if (random.Percent(odds.worker_fails)) worker.ends = Ends::kFails;
  if (random.Percent(odds.worker_hangs)) worker.ends = Ends::kHangs;
  if (random.Percent(odds.worker_cannot_start)) worker.ends = Ends::kNotStarted;
}

// The workers meet, exchange the id, count, write and read, and, in every other generation, leave
// through a barrier.
void Supervisor::Script(Worker& worker, uint64_t client) {
  const GenerationKey& generation = worker.generation;
  const auto add = [&]() -> v1::StoreRequest& {
    worker.to_ask.push_back(RequestOf(generation, worker.rank, client));
    worker.to_ask.back().set_request_id(worker.to_ask.size());
    return worker.to_ask.back();
  };
  add().mutable_barrier()->set_name("start");
  if (worker.rank == 0) {
    v1::PublishCommunicatorId* publish = add().mutable_publish_id();
    publish->set_communicator("world");
    publish->set_id(IdOf(generation));
  } else {
    add().mutable_get_id()->set_communicator("world");
  }
  const std::string key = absl::StrCat("of ", worker.rank);
  for (int round = world_.random.Between(1, 2); round > 0; --round) {
    v1::AddToKey* sum = add().mutable_add();
    sum->set_key("sum");
    sum->set_delta(1);
    v1::SetKey* set = add().mutable_set();
    set->set_key(key);
    set->set_value(absl::StrCat(generation.Text(), " round ", round));
    add().mutable_get()->set_key(key);
  }
  if (generation.number % 2 == 0) add().mutable_barrier()->set_name("end");
}

void Supervisor::Begin(uint64_t id, Worker& worker) {
  if (worker.ends == Ends::kNotStarted) {
    v1::WorkerExit exit;
    exit.set_exit_code(126);
    exit.set_exec_errno(EACCES);
    exit.set_exec_step("exec");
    return EndWithExit(id, std::move(exit), true);
  }
  const bool rejoined = std::exchange(worker.running, true);
  const absl::Duration lives =
      world_.random.Between(absl::Milliseconds(10), plan_.worker_runs_at_most);
  if (worker.ends == Ends::kFails) {
    Later(lives, id, [this, id](Worker&) {
      const int kind = world_.random.Below(10);
      if (kind == 0) return End(id, kExitNever, 0, true);
      if (kind < 4) return End(id, 0, kind == 1 ? SIGSEGV : SIGKILL, true);
      End(id, world_.random.Between(1, 3), 0, true);
    });
  } else if (worker.ends == Ends::kHangs) {
    Later(lives, id, [this](Worker& hanging) {
      oracle_.Worker(hanging.generation, hanging.rank).hangs = true;
      world_.Note(30, hanging.rank, [&] {
        return absl::StrCat("rank ", hanging.rank, " of ", hanging.generation.Text(), " hangs");
      });
    });
  } else {
    // How long the worker works between the exchange and its end.
    worker.step = static_cast<uint64_t>(absl::ToInt64Milliseconds(lives));
  }
  if (worker.told && !rejoined) {
    host_.send_event(
        agent::WorkerRuns{worker.generation.number, worker.local_rank, static_cast<int32_t>(id)});
  }
  if (worker.told && worker.can_rejoin) {
    host_.send_event(agent::WorkerMayRejoin{worker.generation.number, worker.local_rank, true});
  }
  // A worker that never reports is not watched for hangs, so those that will hang report.
  if (worker.rank % 2 == 0 || worker.ends == Ends::kHangs) Report(id);
  AskNext(id);
}

void Supervisor::Report(uint64_t id) {
  Worker* worker = Find(id);
  if (worker == nullptr || oracle_.Worker(worker->generation, worker->rank).hangs) return;
  v1::Progress progress;
  progress.set_local_rank(worker->local_rank);
  progress.set_step(static_cast<uint64_t>(world_.now().micros()));
  oracle_.Worker(worker->generation, worker->rank).reported_at = world_.now();
  worker->progress = progress;
  if (worker->told)
    host_.send_event(agent::WorkerProgress{worker->generation.number, progress, {}});
  Later(absl::Milliseconds(1500), id, [this, id](Worker&) { Report(id); });
}

void Supervisor::AskNext(uint64_t id) {
  Worker* worker = Find(id);
  if (worker == nullptr || oracle_.Worker(worker->generation, worker->rank).hangs) return;
  if (worker->next == worker->to_ask.size()) {
    if (worker->ends == Ends::kWell) End(id, 0, 0, true);
    return;
  }
  v1::StoreRequest& request = worker->to_ask[worker->next];
  worker->asked = oracle_.store().Asked(worker->generation, request);
  Ask(*worker);
}

void Supervisor::Ask(Worker& worker) {
  worker.waits = true;
  if (worker.told) host_.send_event(agent::StoreRequested{worker.to_ask[worker.next]});
}

void Supervisor::Answer(const v1::StoreReply& reply) {
  for (auto& [id, worker] : workers_) {
    if (!worker.waits || worker.to_ask[worker.next].client() != reply.client() ||
        worker.to_ask[worker.next].request_id() != reply.request_id()) {
      continue;
    }
    worker.waits = false;
    Later(world_.random.Between(absl::Microseconds(1), absl::Milliseconds(2)), id,
          [this, id = id, reply](Worker&) { OnAnswer(id, reply); });
    return;
  }
}

void Supervisor::OnAnswer(uint64_t id, const v1::StoreReply& reply) {
  Worker& worker = *Find(id);
  const v1::StoreRequest& request = worker.to_ask[worker.next];
  const auto code = static_cast<absl::StatusCode>(reply.code());
  if (code == absl::StatusCode::kOk) {
    oracle_.CountStoreAnswer();
    std::string wrong = oracle_.store().Answered(worker.generation, worker.world_size, worker.asked,
                                                 request, reply);
    if (!wrong.empty()) oracle_.Break(absl::StrCat(worker.generation.Text(), ": ", wrong));
    ++worker.next;
    // The work itself comes right before the last request.
    const bool works = worker.next + 1 == worker.to_ask.size() && worker.ends == Ends::kWell;
    return Later(absl::Milliseconds(works ? worker.step : world_.random.Below(20)), id,
                 [this, id](Worker&) { AskNext(id); });
  }
  const absl::Duration soon = world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(300));
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return Later(soon, id, [this](Worker& again) { Ask(again); });
    case absl::StatusCode::kAborted:
      // Some workers wait to be stopped, some exit.
      if (world_.random.Percent(50)) return;
      return Later(soon, id, [this, id](Worker&) { End(id, kExitPeerDied, 0, true); });
    case absl::StatusCode::kDeadlineExceeded:
      return Later(soon, id, [this, id](Worker&) { End(id, kExitStoreFailed, 0, true); });
    default:
      oracle_.Break(absl::StrCat(worker.generation.Text(), ": the store says ", reply.message()));
  }
}

void Supervisor::PeerFailed(const GenerationKey& generation) {
  for (auto& [id, worker] : workers_) {
    if (!(worker.generation == generation) || !world_.random.Percent(plan_.odds.collateral)) {
      continue;
    }
    Later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(500)), id,
          [this, id = id](Worker& peer) {
            if (peer.running && peer.can_rejoin) return GiveUp(id);
            if (peer.running) End(id, kExitPeerDied, 0, true);
          });
  }
}

// From now on the process is no worker of its generation, and waits for the next one.
void Supervisor::GiveUp(uint64_t id) {
  Worker& worker = *Find(id);
  WorkerTruth& truth = oracle_.Worker(worker.generation, worker.rank);
  const auto here = generations_.find(worker.generation.number);
  if (worker.gave_up || truth.hangs || !worker.told || here == generations_.end()) return;
  // The worker is being stopped.
  if (here->second.stopping && here->second.kept.count(worker.local_rank) == 0) return;
  ++worker.life;
  worker.gave_up = true;
  worker.waits = false;
  // This counts as the failure of the generation if there is no other one.
  truth.failed = true;
  oracle_.WorkerGone(worker.generation, worker.rank);
  world_.Note(32, worker.rank, [&] {
    return absl::StrCat("rank ", worker.rank, " of ", worker.generation.Text(), " gives it up");
  });
  if (worker.told) {
    host_.send_event(
        agent::WorkerWaits{worker.generation.number, worker.local_rank, "a peer is gone"});
  }
  if (!world_.calm && world_.random.Percent(5)) {
    Later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(300)), id,
          [this, id](Worker&) { End(id, 0, SIGKILL, true); });
  }
}

}  // namespace cadre::simulation
