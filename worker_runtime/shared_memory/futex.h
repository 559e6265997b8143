// Lets a thread sleep on a word that processes share, and a lock made of such a word.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_FUTEX_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace cadre::shared_memory {

// Sleeps until woken, but at most that long. Returns at once if the word is not `seen`.
inline void FutexWait(std::atomic<uint32_t>* word, uint32_t seen, int milliseconds) {
  const timespec timeout = {0, milliseconds * 1000000L};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Called between two reads of a word that another core is about to write.
inline void PauseCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A lock for a communicator's calls. It is not fair and does not detect deadlocks, and costs two
// instructions where std::mutex costs two library calls: a twentieth of the smallest collective.
// Meets std::lock_guard's requirements. It is mutex 2 of "Futexes Are Tricky" (Drepper).
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

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_FUTEX_H_
