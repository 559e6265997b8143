#include "tests/testing/wall_clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

// Other libraries' constructors call this before any constructor here has run.
namespace {

constexpr long kNanosPerSecond = 1000000000;
// How often a wait checks whether the clock was set.
constexpr long kSliceNanos = 5000000;

std::atomic<long> own_setting{0};
std::atomic<long>* setting = &own_setting;

using SyscallFunction = long(long, ...);
std::atomic<SyscallFunction*> next_syscall{nullptr};

// Calls libc's own syscall(), which the function below hides.
template <typename... Arguments>
long Kernel(long number, Arguments... arguments) {
  SyscallFunction* next = next_syscall.load();
  if (next == nullptr) {
    next = reinterpret_cast<SyscallFunction*>(dlsym(RTLD_NEXT, "syscall"));
    next_syscall.store(next);
  }
  return next(number, arguments...);
}

int ClockGetTime(clockid_t clock, timespec* at) {
  if (Kernel(SYS_clock_gettime, clock, at) != 0) return -1;
  if (clock == CLOCK_REALTIME) at->tv_sec += setting->load();
  return 0;
}

// Waits as the kernel does for a moment of the wall clock, even if the clock is set meanwhile.
long WaitUntilWallTime(long word, long operation, long value, const timespec& until, long mask) {
  for (;;) {
    timespec now;
    ClockGetTime(CLOCK_REALTIME, &now);
    const long seconds = until.tv_sec - now.tv_sec;
    long left = kSliceNanos;
    if (seconds < 2) left = seconds * kNanosPerSecond + until.tv_nsec - now.tv_nsec;
    if (seconds < 0 || left <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    Kernel(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    now.tv_nsec += left < kSliceNanos ? left : kSliceNanos;
    now.tv_sec += now.tv_nsec / kNanosPerSecond;
    now.tv_nsec %= kNanosPerSecond;
    const long result =
        Kernel(SYS_futex, word, operation & ~FUTEX_CLOCK_REALTIME, value, &now, nullptr, mask);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

__attribute__((constructor)) void ShareSetting() {
  const char* const path = getenv(CADRE_WALL_CLOCK_FILE);
  if (path == nullptr) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  void* const shared = mmap(nullptr, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (shared != MAP_FAILED) setting = static_cast<std::atomic<long>*>(shared);
}

}  // namespace

extern "C" void SetWallClock(long seconds) { setting->store(seconds); }

extern "C" int clock_gettime(clockid_t clock, timespec* at) noexcept {
  return ClockGetTime(clock, at);
}

// OpenSSL calls this to check whether a certificate has expired.
extern "C" time_t time(time_t* at) noexcept {
  timespec now;
  ClockGetTime(CLOCK_REALTIME, &now);
  if (at != nullptr) *at = now.tv_sec;
  return now.tv_sec;
}

// Abseil waits by calling this.
extern "C" long syscall(long number, ...) noexcept {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const auto* const until = reinterpret_cast<const timespec*>(arguments[3]);
  if (number == SYS_futex && (arguments[1] & FUTEX_CLOCK_REALTIME) != 0 && until != nullptr) {
    return WaitUntilWallTime(arguments[0], arguments[1], arguments[2], *until, arguments[5]);
  }
  return Kernel(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                arguments[5]);
}
