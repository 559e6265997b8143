// Runs a communicator's operations one after the other on one thread. After one failed, those that
// wait and those that come fail with its status.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_OPERATION_THREAD_H_
#define CADRE_WORKER_RUNTIME_BACKEND_OPERATION_THREAD_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "cadre/status.h"
#include "cadre/work.h"

namespace cadre::backend {

// Operations that may wait to be run. A training step enqueues one per bucket.
constexpr size_t kMaxQueuedOperations = 4096;

// RESOURCE_EXHAUSTED: this rank could start no thread, and what to raise.
Status NoThreadError(int rank, const std::system_error& error);

// Thread safe.
class OperationThread {
 public:
  using Operation = std::function<Status()>;

  // std::system_error where no thread can be started.
  OperationThread();
  // Fails the operations that wait with CANCELLED, and joins: the caller makes the one that runs
  // return first.
  ~OperationThread();
  OperationThread(const OperationThread&) = delete;
  OperationThread& operator=(const OperationThread&) = delete;

  // Never blocks. RESOURCE_EXHAUSTED (as the work's status, and then as everyone's) beyond
  // kMaxQueuedOperations.
  std::shared_ptr<Work> Enqueue(Operation operation);

  // Fails the operations that wait and those that come. One that runs goes on, and ends with this
  // status as well. The first status given stays.
  void Fail(const Status& status);

  // OK until something failed.
  Status status() const;

 private:
  struct Entry {
    Operation operation;
    std::shared_ptr<Work> work;
  };

  void Run();
  void RunOne(const Entry& entry);
  void FailLocked(const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_OPERATION_THREAD_H_
