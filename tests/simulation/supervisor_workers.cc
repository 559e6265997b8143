// What the scripted workers of a supervisor do: they meet, ask the store, report, hang, fail, give
// up.
#include <cerrno>
#include <csignal>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/supervisor.h"

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
    host_.tell(
        agent::WorkerRuns{worker.generation.number, worker.local_rank, static_cast<int32_t>(id)});
  }
  if (worker.told && worker.can_rejoin) {
    host_.tell(agent::WorkerMayRejoin{worker.generation.number, worker.local_rank, true});
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
  if (worker->told) host_.tell(agent::WorkerProgress{worker->generation.number, progress, {}});
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
  if (worker.told) host_.tell(agent::WorkerAsked{worker.to_ask[worker.next]});
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
    host_.tell(agent::WorkerWaits{worker.generation.number, worker.local_rank, "a peer is gone"});
  }
  if (!world_.calm && world_.random.Percent(5)) {
    Later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(300)), id,
          [this, id](Worker&) { End(id, 0, SIGKILL, true); });
  }
}

}  // namespace cadre::simulation
