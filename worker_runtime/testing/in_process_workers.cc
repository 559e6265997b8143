#include "worker_runtime/testing/in_process_workers.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rendezvous/keyspace/keyspace.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::testing {
// A store whose calls block. Thread safe.
class InProcessStore {
 public:
  explicit InProcessStore(int world_size) : world_size_(world_size) {}

  Result<keyspace::Reply> Execute(const keyspace::Request& request) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!end_.ok()) return end_;
    const uint64_t call = ++last_call_;
    keyspace::Outcome outcome =
        keyspace_.Execute(MonoNow(), stored_, world_size_, {call, ""}, request);
    if (outcome.change.has_value()) stored_.Apply(*std::move(outcome.change));
    Deliver(outcome.answers);
    const MonoTime deadline = MonoNow() + std::chrono::milliseconds(request.wait_ms);
    while (answers_.count(call) == 0) {
      const absl::Duration left = std::max(deadline - MonoNow(), absl::Milliseconds(1));
      changed_.wait_for(lock, absl::ToChronoMicroseconds(left));
      Deliver(keyspace_.Expire(MonoNow()));
    }
    return std::move(answers_.extract(call).mapped());
  }

  // Ends all waits; every call fails with this status from now on.
  void End(const Status& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_ = why;
    Deliver(keyspace_.End(static_cast<absl::StatusCode>(why.code()), why.message()));
  }

 private:
  void Deliver(const std::vector<keyspace::AddressedReply>& answers) {
    for (const keyspace::AddressedReply& answer : answers)
      answers_[answer.requester.call] = answer.reply;
    if (!answers.empty()) changed_.notify_all();
  }

  const uint32_t world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Status end_;  // OK: not yet
  uint64_t last_call_ = 0;
  keyspace::Keyspace keyspace_;
  keyspace::StoreContent stored_;
  std::map<uint64_t, keyspace::Reply> answers_;  // by call
};

namespace {

class InProcessWorker : public store::StoreWorker {
 public:
  InProcessWorker(InProcessStore* store, int rank, int world_size, int nodes, uint64_t generation)
      : store_(store) {
    const int per_node = world_size / nodes;
    WorkerPlace place;
    place.job = "in_process";
    place.generation = generation;
    place.rank = rank;
    place.world_size = world_size;
    place.nodes = nodes;
    place.node_rank = std::min(rank / per_node, nodes - 1);
    place.local_rank = rank - place.node_rank * per_node;
    place.local_world_size =
        place.node_rank == nodes - 1 ? world_size - (nodes - 1) * per_node : per_node;
    MoveTo(place);
  }

  void ReportProgress(int64_t, double, double) override {}

 private:
  Result<keyspace::Reply> Send(keyspace::Request request) override {
    return store_->Execute(request);
  }

  InProcessStore* const store_;
};

}  // namespace

InProcessWorkers::InProcessWorkers(int world_size, int nodes, uint64_t generation)
    : generation_(generation), store_(std::make_unique<InProcessStore>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    workers_.push_back(
        std::make_unique<InProcessWorker>(store_.get(), rank, world_size, nodes, generation));
  }
}

InProcessWorkers::~InProcessWorkers() = default;

void InProcessWorkers::EndGeneration() {
  store_->End(AbortedError(
      absl::StrCat("generation ", generation_, " is over, the current one is ", generation_ + 1)));
}

void InProcessWorkers::Run(const std::function<void(Worker&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& worker : workers_) {
    threads.emplace_back([&body, &worker] { body(*worker); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cadre::testing
