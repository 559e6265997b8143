// Runs a communicator's operations one after the other on one thread. After one has failed, queued
// and later ones fail with its status.
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

// The most operations in the queue. A training step enqueues one per bucket.
constexpr size_t kMaxQueuedOperations = 4096;

// RESOURCE_EXHAUSTED: this rank could not start a thread; the message names the limit to raise.
Status NoThreadError(int rank, const std::system_error& error);

// Thread safe.
class OperationThread {
 public:
  using Operation = std::function<Status()>;

  // Throws std::system_error if no thread can be started.
  OperationThread();
  // Fails queued operations with CANCELLED, and joins the thread: the caller must first make the
  // running one return.
  ~OperationThread();
  OperationThread(const OperationThread&) = delete;
  OperationThread& operator=(const OperationThread&) = delete;

  // Never blocks. Beyond kMaxQueuedOperations, the work and then all others fail with
  // RESOURCE_EXHAUSTED.
  std::shared_ptr<Work> Enqueue(Operation operation);

  // Fails queued and later operations. A running one continues, and ends with this status as well.
  // The first status given is kept.
  void Fail(const Status& status);

  // OK until an operation fails.
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
