// A lock for a communicator's calls. It has no fairness and knows no deadlocks, and costs two
// instructions where std::mutex costs two library calls: a twentieth of the smallest collective.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_CALL_LOCK_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_CALL_LOCK_H_

#include <atomic>
#include <cstdint>

#include "worker_runtime/shared_memory/futex.h"

namespace cadre::shared_memory {

// For std::lock_guard; after "Futexes Are Tricky" (Drepper), mutex 2.
class CallLock {
 public:
  void lock() {
    uint32_t state = kFree;
    if (!state_.compare_exchange_strong(state, kTaken, std::memory_order_acquire)) LockLater();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kWanted) FutexWakeAll(&state_);
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kWanted = 2;
  static constexpr int kSleepMillis = 100;

  void LockLater() {
    while (state_.exchange(kWanted, std::memory_order_acquire) != kFree) {
      FutexWait(&state_, kWanted, kSleepMillis);
    }
  }

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_CALL_LOCK_H_
