// Sleeping on a word that processes share.
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

// Until it is woken, or at most that long; at once when the word is not `seen`.
inline void FutexWait(std::atomic<uint32_t>* word, uint32_t seen, int milliseconds) {
  const timespec timeout = {0, milliseconds * 1000000L};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Between two looks at a word that another core is about to write.
inline void PauseCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_FUTEX_H_
