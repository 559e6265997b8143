// Starts a device's operations in order, several ahead of their completion, and watches them. It is
// the only thread inside the device's library. It does not depend on CUDA, so that its decisions
// can be tested without a GPU.
#ifndef CADRE_WORKER_RUNTIME_NCCL_PROGRESS_THREAD_H_
#define CADRE_WORKER_RUNTIME_NCCL_PROGRESS_THREAD_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/work.h"

namespace cadre::nccl {

// The number of operations started ahead: enough that the device never waits for the host, few
// enough that its driver's queue is never full.
constexpr size_t kMaxStartedOperations = 64;
// The number of operations that may wait to be started. A training step enqueues one per bucket.
constexpr size_t kMaxWaitingDeviceOperations = 4096;
// The library is asked for errors this often while nothing else happens.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(100);
// The oldest operation is polled this often.
constexpr absl::Duration kPollInterval = absl::Microseconds(50);

// All calls come from the progress thread, except Start() if the caller enqueues it as started.
class DeviceOperation {
 public:
  // kWaiting: the operation is queued behind work that is not its own, such as the computation of
  // the data to be sent.
  enum class Stage { kWaiting, kRunning, kDone };

  virtual ~DeviceOperation() = default;
  // May block until `deadline`, but must not wait for the operation itself.
  virtual Status Start(MonoTime deadline) = 0;
  virtual Result<Stage> Poll() = 0;
  // Returns how long the operation ran. Valid once it is done.
  virtual std::chrono::nanoseconds duration() const = 0;
};

struct ProgressOptions {
  // Applies to each operation, from the time when it runs.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // Appended to every error's text; names the communicator.
  std::string where;
  // Called on the progress thread before anything else.
  std::function<void()> begin = [] {};
  // Returns an error if the library no longer works.
  std::function<Status()> check_health = [] { return OkStatus(); };
  // Makes the device release the buffers of started operations; returns within a second. Called
  // once, after the first failure.
  std::function<void()> quiesce = [] {};
};

// Thread safe.
class ProgressThread {
 public:
  explicit ProgressThread(ProgressOptions options);
  // Makes unfinished operations fail with CANCELLED, and joins the thread.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Never blocks. `started`: the caller has already started the operation, and calls this in the
  // order of starting. `what` names the operation in errors. The work completes when the device no
  // longer touches the buffers, also on failure. RESOURCE_EXHAUSTED: more than
  // kMaxWaitingDeviceOperations wait; this is the work's status and then that of all operations.
  std::shared_ptr<Work> Enqueue(std::string what, std::unique_ptr<DeviceOperation> operation,
                                bool started = false);

  // Makes running, waiting and later operations fail. The first status is kept.
  void Fail(const Status& status);

  // Returns OK until an operation or the library has failed.
  Status status() const;
  // Returns true if all enqueued operations are done.
  bool idle() const;

 private:
  struct Entry {
    std::string what;
    std::unique_ptr<DeviceOperation> operation;
    bool started = false;
    std::shared_ptr<Work> work;
    uint64_t number = 0;
    MonoTime runs_since = MonoTime::Never();
  };

  void Run();
  // Runs until something fails or the thread is to stop.
  void RunWhileHealthy();
  void StartNext();
  void PollOldest();
  void PollHealth();
  void EndAfterFailure();
  Status Annotated(const Entry& entry, const Status& status) const;

  const ProgressOptions options_;
  // Only for the progress thread.
  std::deque<Entry> started_;
  MonoTime next_health_check_;

  mutable std::mutex mutex_;
  // Notified of every change for which the progress thread may wait.
  std::condition_variable changed_;
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;
  Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_PROGRESS_THREAD_H_
