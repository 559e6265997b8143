// Starts operations of a device in order, several ahead of their completion, and watches them: one
// thread that is the only one inside the device's library. Knows no CUDA, so that its decisions
// are tested without a GPU.
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

// Operations that are started ahead: enough that the device never waits for the host, few enough
// that the queue of its driver is never full.
constexpr size_t kMaxStartedOperations = 64;
// Operations that wait to be started. A training step enqueues one per bucket.
constexpr size_t kMaxWaitingDeviceOperations = 4096;
// How often the library is asked for errors while nothing else happens.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(100);
// How often the oldest operation is looked at.
constexpr absl::Duration kPollInterval = absl::Microseconds(50);

// All calls come from the progress thread, but for a Start() of whoever enqueues it as started.
class DeviceOperation {
 public:
  // kWaiting: behind something on the device that is not its own, such as the computation of what
  // is sent.
  enum class Stage { kWaiting, kRunning, kDone };

  virtual ~DeviceOperation() = default;
  // May wait until `deadline`, but not for the operation itself.
  virtual Status Start(MonoTime deadline) = 0;
  virtual Result<Stage> Look() = 0;
  // How long it ran; once it is done.
  virtual std::chrono::nanoseconds duration() const = 0;
};

struct ProgressOptions {
  // For each operation from when it runs.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // Ends every error's text: which communicator.
  std::string where;
  // Called on the progress thread before anything else.
  std::function<void()> begin = [] {};
  // Whether the library still works.
  std::function<Status()> check_health = [] { return OkStatus(); };
  // Makes the device leave the buffers of what was started; returns within a second. Called once,
  // after the first failure.
  std::function<void()> quiesce = [] {};
};

// Thread safe.
class ProgressThread {
 public:
  explicit ProgressThread(ProgressOptions options);
  // Fails what is not done with CANCELLED, and joins.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Never blocks. `started`: the caller has started it already, and calls in that order. `what`
  // names the operation in errors. The work is complete once the device does not touch the buffers
  // any more, also when it failed. RESOURCE_EXHAUSTED (as the work's status, and then as
  // everyone's) beyond kMaxWaitingDeviceOperations.
  std::shared_ptr<Work> Enqueue(std::string what, std::unique_ptr<DeviceOperation> operation,
                                bool started = false);

  // Fails what runs, what waits and what comes. The first status given stays.
  void Fail(const Status& status);

  // OK until something failed.
  Status status() const;
  // Whether everything that was enqueued is done.
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
  // Until something fails or the thread is to stop.
  void RunWhileHealthy();
  void StartNext();
  void LookAtOldest();
  void LookAtHealth();
  void EndAfterFailure();
  Status Told(const Entry& entry, const Status& status) const;

  const ProgressOptions options_;
  // By the progress thread.
  std::deque<Entry> started_;
  MonoTime next_health_check_;

  mutable std::mutex mutex_;
  // Notified of everything that the progress thread may wait for.
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
