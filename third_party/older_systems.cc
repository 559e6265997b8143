// Programs and the library are compiled where Debian 12 is, and run where RHEL 9 and Ubuntu 22.04
// are too: glibc 2.34 and the libstdc++ of GCC 11. These are all the functions that they took from
// newer ones.
#include <pthread.h>
#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>

// Of glibc 2.36; libevent's archive calls them. Nobody else is to find them.
extern "C" __attribute__((visibility("hidden"))) void arc4random_buf(void* buffer,
                                                                     size_t size) noexcept {
  char* next = static_cast<char*>(buffer);
  while (size > 0) {
    const ssize_t got = getrandom(next, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      abort();
    }
    next += got;
    size -= static_cast<size_t>(got);
  }
}

extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t value = 0;
  arc4random_buf(&value, sizeof value);
  return value;
}

// std::condition_variable::wait() has a new version in GCC 12's libstdc++ since it is no longer
// noexcept. The linker puts this one, which does the same, in its place: --wrap in this library's
// linkopts.
extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle());
}
