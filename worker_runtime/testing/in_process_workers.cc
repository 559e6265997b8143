#include "worker_runtime/testing/in_process_workers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"

namespace cadre {
namespace {

constexpr uint64_t kFirstGeneration = 1;
constexpr size_t kMaxKey = 256;
constexpr size_t kMaxValue = 64 * 1024;
// As many of those who are missing as an error names.
constexpr size_t kMaxNamed = 3;

}  // namespace

// The limits and errors of proto/store.proto.
class InProcessStore {
 public:
  explicit InProcessStore(int world_size) : world_size_(world_size) {}

  absl::Status Set(absl::string_view key, absl::string_view value) {
    absl::MutexLock lock(&mutex_);
    absl::Status status = Check(key, value);
    if (status.ok()) values_[std::string(key)] = std::string(value);
    return status;
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) {
    const std::string name(key);
    const auto answered = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return over_ || values_.count(name) > 0;
    };
    absl::MutexLock lock(&mutex_);
    const absl::Status status = Check(key, "");
    if (!status.ok()) return status;
    if (!mutex_.AwaitWithTimeout(absl::Condition(&answered), timeout)) {
      return timeout > absl::ZeroDuration()
                 ? absl::DeadlineExceededError(absl::StrCat("no key \"", key, "\" came"))
                 : absl::NotFoundError(absl::StrCat("no key \"", key, "\""));
    }
    if (over_) return Over();
    return values_[name];
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = Check(key, "");
    if (!status.ok()) return status;
    std::string& value = values_[std::string(key)];
    int64_t number = 0;
    if (!value.empty() && !absl::SimpleAtoi(value, &number)) {
      return absl::FailedPreconditionError(absl::StrCat("\"", key, "\" holds no number"));
    }
    value = absl::StrCat(number + delta);
    return number + delta;
  }

  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired) {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = Check(key, desired);
    if (!status.ok()) return status;
    const auto found = values_.find(std::string(key));
    const std::string before = found == values_.end() ? "" : found->second;
    if (before == expected) {
      values_[std::string(key)] = std::string(desired);
      return std::string(desired);
    }
    if (before == desired) return before;
    return absl::FailedPreconditionError(absl::StrCat("\"", key, "\" holds another value"));
  }

  absl::Status Delete(absl::string_view key) {
    absl::MutexLock lock(&mutex_);
    absl::Status status = Check(key, "");
    if (status.ok()) values_.erase(std::string(key));
    return status;
  }

  absl::Status Barrier(int rank, absl::string_view name, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = Check(name, "");
    if (!status.ok()) return status;
    BarrierState& barrier = barriers_[std::string(name)];
    const uint64_t round = barrier.round;
    barrier.entered.insert(rank);
    if (static_cast<int>(barrier.entered.size()) == world_size_) {
      barrier.entered.clear();
      ++barrier.round;
      return absl::OkStatus();
    }
    const auto answered = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return over_ || barrier.round != round;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&answered), timeout)) {
      return absl::DeadlineExceededError(
          absl::StrCat("barrier \"", name, "\" waits for rank ", Missing(barrier.entered)));
    }
    return barrier.round != round ? absl::OkStatus() : Over();
  }

  absl::Status PublishId(absl::string_view communicator, absl::string_view id) {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = Check(communicator, id);
    if (!status.ok()) return status;
    const auto [entry, is_new] = values_.emplace(IdKey(communicator), std::string(id));
    if (is_new || entry->second == id) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("communicator \"", communicator, "\" has another id already"));
  }

  static std::string IdKey(absl::string_view communicator) {
    return absl::StrCat("communicator_id:", communicator);
  }

  void End() {
    absl::MutexLock lock(&mutex_);
    over_ = true;
  }

 private:
  struct BarrierState {
    uint64_t round = 0;
    std::set<int> entered;
  };

  absl::Status Check(absl::string_view key, absl::string_view value) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (over_) return Over();
    if (key.empty() || key.size() > kMaxKey || value.size() > kMaxValue) {
      return absl::InvalidArgumentError(absl::StrCat("a key of ", key.size(), " and a value of ",
                                                     value.size(), " bytes: at most ", kMaxKey,
                                                     " and ", kMaxValue));
    }
    return absl::OkStatus();
  }

  static absl::Status Over() {
    return absl::AbortedError(absl::StrCat("generation ", kFirstGeneration,
                                           " is over, the current one is ", kFirstGeneration + 1));
  }

  std::string Missing(const std::set<int>& entered) const {
    std::vector<int> missing;
    for (int rank = 0; rank < world_size_ && missing.size() < kMaxNamed; ++rank) {
      if (entered.count(rank) == 0) missing.push_back(rank);
    }
    return absl::StrJoin(missing, ", ");
  }

  const int world_size_;
  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, BarrierState> barriers_ ABSL_GUARDED_BY(mutex_);
};

namespace {

class InProcessWorker : public Worker {
 public:
  InProcessWorker(InProcessStore* store, int rank, int world_size, int nodes) : store_(store) {
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
    return store_->PublishId(communicator, id);
  }
  absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                             absl::Duration timeout) override {
    return store_->Get(InProcessStore::IdKey(communicator), timeout);
  }
  void ReportProgress(int64_t, double, double) override {}

 private:
  InProcessStore* const store_;
  WorkerPlace place_;
};

}  // namespace

InProcessWorkers::InProcessWorkers(int world_size, int nodes)
    : store_(std::make_unique<InProcessStore>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    workers_.push_back(std::make_unique<InProcessWorker>(store_.get(), rank, world_size, nodes));
  }
}

InProcessWorkers::~InProcessWorkers() = default;

void InProcessWorkers::EndGeneration() { store_->End(); }

void InProcessWorkers::Run(const std::function<void(Worker&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& worker : workers_) {
    threads.emplace_back([&body, &worker] { body(*worker); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cadre
