#include "worker_runtime/testing/forked_workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre::testing {

constexpr size_t kMaxKey = 256;
constexpr size_t kMaxValue = 8 << 10;
constexpr size_t kMaxEntries = 1024;

// The store is in memory that parent and children share; pages that are never written cost nothing.
struct SharedStore {
  struct Entry {
    bool used;
    uint32_t size;
    char key[kMaxKey + 1];
    char value[kMaxValue];
  };
  pthread_mutex_t mutex;
  // Counts changes. It is a futex, since a condition variable of glibc blocks for ever once a
  // process that waits for it was killed.
  std::atomic<uint32_t> changes;
  Entry entries[kMaxEntries];
};

namespace {

SharedStore* MapStore() {
  void* memory = mmap(nullptr, sizeof(SharedStore), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    abort();
  }
  auto* store = static_cast<SharedStore*>(memory);
  pthread_mutexattr_t mutex;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  // A rank that is killed while it holds the lock must not stop the others.
  pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&store->mutex, &mutex);
  return store;
}

class StoreLock {
 public:
  explicit StoreLock(SharedStore* store) : store_(store) {
    if (pthread_mutex_lock(&store_->mutex) == EOWNERDEAD) {
      pthread_mutex_consistent(&store_->mutex);
    }
  }
  ~StoreLock() { pthread_mutex_unlock(&store_->mutex); }

 private:
  SharedStore* const store_;
};

class ForkedWorker : public Worker {
 public:
  ForkedWorker(SharedStore* store, const WorkerPlace& place) : store_(store), place_(place) {}

  const WorkerPlace& place() const override { return place_; }

  Status Set(std::string_view key, std::string_view value) override {
    StoreLock lock(store_);
    return Write(key, value);
  }

  Result<std::string> Get(std::string_view key, std::chrono::nanoseconds timeout) override {
    const MonoTime end =
        MonoNow() + std::clamp(absl::FromChrono(timeout), absl::ZeroDuration(), absl::Hours(1));
    for (;;) {
      uint32_t changes = 0;
      {
        StoreLock lock(store_);
        if (const SharedStore::Entry* entry = Find(key)) {
          return std::string(entry->value, entry->size);
        }
        changes = store_->changes;
      }
      const absl::Duration left = end - MonoNow();
      if (left <= absl::ZeroDuration()) {
        return DeadlineExceededError(absl::StrCat("no key \"", ToAbsl(key), "\" came"));
      }
      const int64_t millis = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 100);
      shared_memory::FutexWait(&store_->changes, changes, static_cast<int>(millis));
    }
  }

  Result<int64_t> Add(std::string_view key, int64_t delta) override {
    StoreLock lock(store_);
    const SharedStore::Entry* entry = Find(key);
    int64_t number = 0;
    if (entry != nullptr &&
        !absl::SimpleAtoi(absl::string_view(entry->value, entry->size), &number)) {
      return FailedPreconditionError(absl::StrCat("\"", ToAbsl(key), "\" holds no number"));
    }
    const Status status = Write(key, absl::StrCat(number + delta));
    if (!status.ok()) return status;
    return number + delta;
  }

  Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                    std::string_view desired) override {
    StoreLock lock(store_);
    const SharedStore::Entry* entry = Find(key);
    const std::string before = entry == nullptr ? "" : std::string(entry->value, entry->size);
    if (before != expected && before != desired) {
      return FailedPreconditionError(absl::StrCat("\"", ToAbsl(key), "\" holds another value"));
    }
    const Status status = Write(key, desired);
    if (!status.ok()) return status;
    return std::string(desired);
  }

  Status Delete(std::string_view key) override {
    StoreLock lock(store_);
    SharedStore::Entry* entry = Find(key);
    if (entry != nullptr) entry->used = false;
    return OkStatus();
  }

  Status Barrier(std::string_view name, std::chrono::nanoseconds timeout) override {
    const std::string prefix = absl::StrCat("barrier:", ToAbsl(name), ":");
    const auto entered = Add(absl::StrCat(prefix, "entered"), 1);
    if (!entered.ok()) return entered.status();
    const int64_t round = (*entered - 1) / place_.world_size;
    const std::string open = absl::StrCat(prefix, "open:", round);
    if (*entered % place_.world_size == 0) return Set(open, "");
    return Get(open, timeout).status();
  }

  Status PublishCommunicatorId(std::string_view communicator, std::string_view id) override {
    return Set(absl::StrCat("id:", ToAbsl(communicator)), id);
  }
  Result<std::string> CommunicatorId(std::string_view communicator,
                                     std::chrono::nanoseconds timeout) override {
    return Get(absl::StrCat("id:", ToAbsl(communicator)), timeout);
  }
  void ReportProgress(int64_t, double, double) override {}

 private:
  SharedStore::Entry* Find(std::string_view key) {
    for (SharedStore::Entry& entry : store_->entries) {
      if (entry.used && key == entry.key) return &entry;
    }
    return nullptr;
  }

  Status Write(std::string_view key, std::string_view value) {
    if (key.size() > kMaxKey || value.size() > kMaxValue) {
      return InvalidArgumentError(absl::StrCat("\"", ToAbsl(key), "\" or its value is too long"));
    }
    SharedStore::Entry* entry = Find(key);
    for (size_t i = 0; entry == nullptr && i < kMaxEntries; ++i) {
      if (!store_->entries[i].used) entry = &store_->entries[i];
    }
    if (entry == nullptr) return ResourceExhaustedError("the store is full");
    memcpy(entry->key, key.data(), key.size());
    entry->key[key.size()] = '\0';
    memcpy(entry->value, value.data(), value.size());
    entry->size = static_cast<uint32_t>(value.size());
    entry->used = true;
    ++store_->changes;
    shared_memory::FutexWakeAll(&store_->changes);
    return OkStatus();
  }

  SharedStore* const store_;
  const WorkerPlace place_;
};

WorkerPlace PlaceOf(int rank, int world_size, int nodes) {
  WorkerPlace place;
  place.job = "forked";
  place.generation = 1;
  place.rank = rank;
  place.world_size = world_size;
  place.nodes = nodes;
  place.local_world_size = world_size / nodes;
  place.node_rank = std::max(rank, 0) / place.local_world_size;
  place.local_rank = std::max(rank, 0) % place.local_world_size;
  return place;
}

}  // namespace

ForkedWorkers::ForkedWorkers(int world_size, int nodes)
    : world_size_(world_size),
      nodes_(nodes),
      store_(MapStore()),
      observer_(std::make_unique<ForkedWorker>(store_, PlaceOf(-1, world_size, nodes))) {}

ForkedWorkers::~ForkedWorkers() {
  for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank) {
    if (pids_[rank] <= 0) continue;
    kill(pids_[rank], SIGKILL);
    Wait(rank);
  }
  munmap(store_, sizeof(SharedStore));
}

pid_t ForkedWorkers::Fork(int rank, const std::function<int(Worker&)>& body) {
  fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  ForkedWorker worker(store_, PlaceOf(rank, world_size_, nodes_));
  const int status = body(worker);
  fflush(nullptr);
  _exit(status);
}

void ForkedWorkers::Start(const std::function<int(Worker&)>& body) {
  for (int rank = 0; rank < world_size_; ++rank) pids_.push_back(Fork(rank, body));
}

void ForkedWorkers::Replace(int rank, const std::function<int(Worker&)>& body) {
  pids_[rank] = Fork(rank, body);
}

void ForkedWorkers::Signal(int rank, int signal) const { kill(pids_[rank], signal); }

int ForkedWorkers::Wait(int rank) {
  int status = 0;
  if (waitpid(pids_[rank], &status, 0) < 0) return -1;
  pids_[rank] = -1;
  return ExitStatusOfWait(status);
}

int ForkedWorkers::WaitForAll() {
  int first = 0;
  for (int rank = 0; rank < world_size_; ++rank) {
    const int status = pids_[rank] > 0 ? Wait(rank) : 0;
    if (first == 0) first = status;
  }
  return first;
}

}  // namespace cadre::testing
