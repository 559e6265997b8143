#include "worker_runtime/backend/operation_thread.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace cadre::backend {

Status NoThreadError(int rank, const std::system_error& error) {
  return ResourceExhaustedError(
      absl::StrCat("rank ", rank, " cannot start a thread: ", error.code().message(),
                   "; raise the limit of processes (ulimit -u, or the container's pids.max)"));
}

OperationThread::OperationThread() {
  thread_ = std::thread([this] { Run(); });
}

OperationThread::~OperationThread() {
  {
    absl::MutexLock lock(&mutex_);
    FailLocked(CancelledError("the communicator was destroyed"));
    stopping_ = true;
  }
  thread_.join();
}

std::shared_ptr<Work> OperationThread::Enqueue(Operation operation) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok() && queue_.size() >= kMaxQueuedOperations) {
    FailLocked(ResourceExhaustedError(absl::StrCat(
        kMaxQueuedOperations, " collectives wait already; wait for some of them first")));
  }
  if (!status_.ok()) return FinishedWork(status_);
  auto work = std::make_shared<Work>();
  queue_.push_back({std::move(operation), work});
  return work;
}

void OperationThread::Fail(const Status& status) {
  absl::MutexLock lock(&mutex_);
  FailLocked(status);
}

Status OperationThread::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void OperationThread::FailLocked(const Status& status) {
  if (status_.ok()) status_ = status;
  for (Entry& entry : queue_) entry.work->Complete(status_, std::chrono::nanoseconds(0));
  queue_.clear();
}

void OperationThread::Run() {
  const auto has_news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !queue_.empty();
  };
  while (true) {
    Entry entry;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_news));
      if (queue_.empty()) return;
      entry = std::move(queue_.front());
      queue_.pop_front();
    }
    RunOne(entry);
  }
}

void OperationThread::RunOne(const Entry& entry) {
  const MonoTime start = MonoNow();
  Status result = entry.operation();
  {
    absl::MutexLock lock(&mutex_);
    if (!result.ok()) {
      FailLocked(result);
      // If something failed earlier, that is also the reason for this failure.
      result = status_;
    }
  }
  entry.work->Complete(result, absl::ToChronoNanoseconds(MonoNow() - start));
}

}  // namespace cadre::backend
