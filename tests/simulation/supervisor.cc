#include "tests/simulation/supervisor.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/frames.h"

namespace cadre::simulation {

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
    host_.tell(agent::WorkerDied{generation.number, local_rank, exit});
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
    // What its agent does about it may come before this returns.
    const auto found = generations_.find(worker.generation.number);
    if (found != generations_.end()) {
      found->second.alive.erase(id);
      found->second.exits[worker.local_rank] = exit;
    }
    host_.tell(agent::WorkerDied{worker.generation.number, worker.local_rank, std::move(exit)});
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
        host_.tell(agent::AllGone{number, 0, kept});
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
    host_.tell(agent::AllGone{number, port, kept});
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
      host_.tell(agent::WorkerRuns{number, worker.local_rank, static_cast<int32_t>(id)});
    }
    if (worker.progress.has_value())
      host_.tell(agent::WorkerProgress{number, *worker.progress, {}});
    // What was not answered is asked again.
    if (worker.waits) host_.tell(agent::WorkerAsked{worker.to_ask[worker.next]});
  }
  const std::map<uint32_t, v1::WorkerExit> exits = generation.exits;
  for (const auto& [local_rank, exit] : exits)
    host_.tell(agent::WorkerDied{number, local_rank, exit});
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
