#include "tests/simulation/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/frames.h"

namespace cadre::simulation {
namespace {

// Longer than any worker works.
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
      GoOn(generation, assign, i);
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

// A process that waits takes its new place.
void Supervisor::GoOn(const GenerationKey& generation, const v1::Assign& assign,
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
  // It died just before, and its agent hears of that only now.
  oracle_.WorkerGone(generation, assign.first_rank() + local_rank);
  oracle_.Worker(generation, assign.first_rank() + local_rank).failed = true;
  oracle_.Worker(generation, assign.first_rank() + local_rank).signal = SIGKILL;
  v1::WorkerExit exit;
  exit.set_signal(SIGKILL);
  world_.schedule.In(absl::Microseconds(50), [this, generation, local_rank, exit] {
    host_.tell(WorkerDied{generation.number, local_rank, exit});
  });
}

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

// Meet, exchange the id, count, write and read, and, in every other generation, part together.
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
    // The work between the exchange and the end.
    worker.step = static_cast<uint64_t>(absl::ToInt64Milliseconds(lives));
  }
  if (worker.told && !rejoined) {
    host_.tell(WorkerRuns{worker.generation.number, worker.local_rank, static_cast<int32_t>(id)});
  }
  if (worker.told && worker.can_rejoin) {
    host_.tell(WorkerMayRejoin{worker.generation.number, worker.local_rank, true});
  }
  // Who never reports is not watched, so those that will hang do.
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
  if (worker->told) host_.tell(WorkerProgress{worker->generation.number, progress, {}});
  Later(absl::Milliseconds(1500), id, [this, id](Worker&) { Report(id); });
}

std::vector<uint32_t> Supervisor::Alive(uint64_t generation) const {
  std::vector<uint32_t> alive;
  const auto found = generations_.find(generation);
  if (found == generations_.end()) return alive;
  for (const uint64_t id : found->second.alive) alive.push_back(workers_.at(id).local_rank);
  return alive;
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
  if (worker.told) host_.tell(WorkerAsked{worker.to_ask[worker.next]});
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
    // The last thing before the end is the work itself.
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
      // Some wait to be stopped, some leave.
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

// From now on it is no worker of its generation, and waits for the next one.
void Supervisor::GiveUp(uint64_t id) {
  Worker& worker = *Find(id);
  WorkerTruth& truth = oracle_.Worker(worker.generation, worker.rank);
  const auto here = generations_.find(worker.generation.number);
  if (worker.gave_up || truth.hangs || !worker.told || here == generations_.end()) return;
  // It is being stopped.
  if (here->second.stopping && here->second.kept.count(worker.local_rank) == 0) return;
  ++worker.life;
  worker.gave_up = true;
  worker.waits = false;
  // What counts as its failure if nobody else had one.
  truth.failed = true;
  oracle_.WorkerGone(worker.generation, worker.rank);
  world_.Note(32, worker.rank, [&] {
    return absl::StrCat("rank ", worker.rank, " of ", worker.generation.Text(), " gives it up");
  });
  if (worker.told) {
    host_.tell(WorkerWaits{worker.generation.number, worker.local_rank, "a peer is gone"});
  }
  if (!world_.calm && world_.random.Percent(5)) {
    Later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(300)), id,
          [this, id](Worker&) { End(id, 0, SIGKILL, true); });
  }
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
    // What its agent does about it may come before this returns.
    const auto found = generations_.find(worker.generation.number);
    if (found != generations_.end()) {
      found->second.alive.erase(id);
      found->second.exits[worker.local_rank] = exit;
    }
    host_.tell(WorkerDied{worker.generation.number, worker.local_rank, std::move(exit)});
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
        host_.tell(AllGone{number, 0, kept});
      });
    }
    return;
  }
  Generation& generation = found->second;
  const MonoTime kill_at = world_.now() + grace;
  for (const uint64_t id : generation.alive) {
    Worker& worker = *Find(id);
    if (kept.count(worker.local_rank) != 0) {
      // A few do not come.
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
    host_.tell(AllGone{number, port, kept});
  });
}

bool Supervisor::Keep(absl::Duration time) {
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
      host_.tell(WorkerRuns{number, worker.local_rank, static_cast<int32_t>(id)});
    }
    if (worker.progress.has_value()) host_.tell(WorkerProgress{number, *worker.progress, {}});
    // What was not answered is asked again.
    if (worker.waits) host_.tell(WorkerAsked{worker.to_ask[worker.next]});
  }
  const std::map<uint32_t, v1::WorkerExit> exits = generation.exits;
  for (const auto& [local_rank, exit] : exits) host_.tell(WorkerDied{number, local_rank, exit});
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

}  // namespace cadre::simulation
