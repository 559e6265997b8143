// absl::Mutex and what is built on it, over pthreads: only in programs built with --config=tsan.
//
// Debian's Abseil is not instrumented, and its Mutex is made of atomics and futexes, so the thread
// sanitizer would see no order between two threads that take the same absl::Mutex, in our code or
// inside gRPC. The definitions in a program come before those of the shared libraries it loads;
// these are made of pthread calls, which the sanitizer knows. Fairness and speed are not those of
// Abseil; the meaning is. A reader's lock is exclusive here.

#include <errno.h>
#include <pthread.h>
#include <sanitizer/tsan_interface.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace {

struct Pthreads {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;  // something that a condition may depend on
  int waiting_for_condition = 0;
};

// The object behind the word that Abseil's class has room for, made on first use: the constructors
// are in a header.
template <typename T>
T* Behind(std::atomic<intptr_t>* word) {
  intptr_t value = word->load(std::memory_order_acquire);
  if (value == 0) {
    T* made = new T();  // zeros, where it is a pthread type
    if (word->compare_exchange_strong(value, reinterpret_cast<intptr_t>(made),
                                      std::memory_order_acq_rel)) {
      return made;
    }
    delete made;
  }
  return reinterpret_cast<T*>(value);
}

// absl::Mutex is standard layout and its only member is the word.
Pthreads* BehindMutex(absl::Mutex* mutex) {
  static_assert(sizeof(absl::Mutex) == sizeof(std::atomic<intptr_t>), "a different Abseil");
  return Behind<Pthreads>(reinterpret_cast<std::atomic<intptr_t>*>(mutex));
}

// False when the time is over.
bool WaitUntil(pthread_cond_t* condition, pthread_mutex_t* mutex, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    pthread_cond_wait(condition, mutex);
    return true;
  }
  timespec until = absl::ToTimespec(deadline < absl::UnixEpoch() ? absl::UnixEpoch() : deadline);
  return pthread_cond_timedwait(condition, mutex, &until) != ETIMEDOUT;
}

absl::Time After(absl::Duration timeout) {
  return timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : absl::Now() + timeout;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

Mutex::~Mutex() {
  if (mu_.load(std::memory_order_acquire) == 0) return;
  auto* lock = BehindMutex(this);
  // The last owner may have told this thread in a way that the sanitizer does not see (a reference
  // count inside gRPC).
  pthread_mutex_lock(&lock->mutex);
  pthread_mutex_unlock(&lock->mutex);
  pthread_cond_destroy(&lock->changed);
  pthread_mutex_destroy(&lock->mutex);
  delete lock;
}

void Mutex::Lock() { pthread_mutex_lock(&BehindMutex(this)->mutex); }

void Mutex::Unlock() {
  auto* lock = BehindMutex(this);
  if (lock->waiting_for_condition > 0) pthread_cond_broadcast(&lock->changed);
  pthread_mutex_unlock(&lock->mutex);
}

bool Mutex::TryLock() { return pthread_mutex_trylock(&BehindMutex(this)->mutex) == 0; }
void Mutex::ReaderLock() { Lock(); }
void Mutex::ReaderUnlock() { Unlock(); }
bool Mutex::ReaderTryLock() { return TryLock(); }

void Mutex::AssertHeld() const {}
void Mutex::AssertReaderHeld() const {}
void Mutex::AssertNotHeld() const {}
void Mutex::EnableInvariantDebugging(void (*)(void*), void*) {}
void Mutex::EnableDebugLog(const char*) {}
void Mutex::ForgetDeadlockInfo() {}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  auto* lock = BehindMutex(this);
  bool in_time = true;
  while (!condition.Eval()) {
    if (!in_time) return false;
    // Letting go of the mutex may make another thread's condition true.
    if (lock->waiting_for_condition > 0) pthread_cond_broadcast(&lock->changed);
    ++lock->waiting_for_condition;
    in_time = WaitUntil(&lock->changed, &lock->mutex, deadline);
    --lock->waiting_for_condition;
  }
  return true;
}

void Mutex::Await(const Condition& condition) { AwaitWithDeadline(condition, InfiniteFuture()); }
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, After(timeout));
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}
void Mutex::LockWhen(const Condition& condition) {
  LockWhenWithDeadline(condition, InfiniteFuture());
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, After(timeout));
}
void Mutex::ReaderLockWhen(const Condition& condition) { LockWhen(condition); }
bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  return LockWhenWithDeadline(condition, deadline);
}
bool Mutex::ReaderLockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithTimeout(condition, timeout);
}

void ReleasableMutexLock::Release() {
  mu_->Unlock();
  mu_ = nullptr;
}

CondVar::~CondVar() {
  if (cv_.load(std::memory_order_acquire) == 0) return;
  auto* condition = Behind<pthread_cond_t>(&cv_);
  __tsan_acquire(
      condition);  // as in ~Mutex: the last user may have told us in a way that is not seen
  pthread_cond_destroy(condition);
  delete condition;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  auto* lock = BehindMutex(mutex);
  if (lock->waiting_for_condition > 0) pthread_cond_broadcast(&lock->changed);
  auto* condition = Behind<pthread_cond_t>(&cv_);
  const bool in_time = WaitUntil(condition, &lock->mutex, deadline);
  __tsan_release(condition);
  return !in_time;
}
void CondVar::Wait(Mutex* mutex) { WaitWithDeadline(mutex, InfiniteFuture()); }
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, After(timeout));
}
void CondVar::Signal() {
  auto* condition = Behind<pthread_cond_t>(&cv_);
  pthread_cond_signal(condition);
  __tsan_release(condition);
}
void CondVar::SignalAll() {
  auto* condition = Behind<pthread_cond_t>(&cv_);
  pthread_cond_broadcast(condition);
  __tsan_release(condition);
}
void CondVar::EnableDebugLog(const char*) {}

Notification::~Notification() { MutexLock lock(&mutex_); }

void Notification::Notify() {
  MutexLock lock(&mutex_);
  notified_yet_.store(true, std::memory_order_release);
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(Condition(&HasBeenNotifiedInternal, &notified_yet_), deadline);
}
void Notification::WaitForNotification() const {
  WaitForNotificationWithDeadline(InfiniteFuture());
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  return WaitForNotificationWithDeadline(After(timeout));
}

bool BlockingCounter::DecrementCount() {
  MutexLock lock(&lock_);
  done_ = count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  return done_;
}

void BlockingCounter::Wait() {
  MutexLock lock(&lock_);
  lock_.Await(Condition(&done_));
}

ABSL_NAMESPACE_END
}  // namespace absl
