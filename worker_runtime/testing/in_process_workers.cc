#include "worker_runtime/testing/in_process_workers.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker_runtime/generation_store.h"

namespace cadre::testing {
namespace {

constexpr uint64_t kFirstGeneration = 1;

class InProcessWorker : public Worker {
 public:
  InProcessWorker(GenerationStore* store, int rank, int world_size, int nodes) : store_(store) {
    const int per_node = world_size / nodes;
    place_.job = "in_process";
    place_.generation = kFirstGeneration;
    place_.rank = rank;
    place_.world_size = world_size;
    place_.nodes = nodes;
    place_.node_rank = std::min(rank / per_node, nodes - 1);
    place_.local_rank = rank - place_.node_rank * per_node;
    place_.local_world_size =
        place_.node_rank == nodes - 1 ? world_size - (nodes - 1) * per_node : per_node;
  }

  const WorkerPlace& place() const override { return place_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    return store_->Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override {
    return store_->Add(key, delta);
  }
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired) override {
    return store_->CompareAndSet(key, expected, desired);
  }
  absl::Status Delete(absl::string_view key) override { return store_->Delete(key); }
  absl::Status Barrier(absl::string_view name, absl::Duration timeout) override {
    return store_->Barrier(place_.rank, name, timeout);
  }
  absl::Status PublishCommunicatorId(absl::string_view communicator,
                                     absl::string_view id) override {
    return store_->PublishCommunicatorId(communicator, id);
  }
  absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                             absl::Duration timeout) override {
    return store_->CommunicatorId(communicator, timeout);
  }
  void ReportProgress(int64_t, double, double) override {}

 private:
  GenerationStore* const store_;
  WorkerPlace place_;
};

}  // namespace

InProcessWorkers::InProcessWorkers(int world_size, int nodes)
    : store_(std::make_unique<GenerationStore>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    workers_.push_back(std::make_unique<InProcessWorker>(store_.get(), rank, world_size, nodes));
  }
}

InProcessWorkers::~InProcessWorkers() = default;

void InProcessWorkers::EndGeneration() {
  store_->End(absl::AbortedError(absl::StrCat(
      "generation ", kFirstGeneration, " is over, the current one is ", kFirstGeneration + 1)));
}

void InProcessWorkers::Run(const std::function<void(Worker&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& worker : workers_) {
    threads.emplace_back([&body, &worker] { body(*worker); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cadre::testing
