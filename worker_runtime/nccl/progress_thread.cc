#include "worker_runtime/nccl/progress_thread.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/steady_wait.h"

namespace cadre::nccl {

ProgressThread::ProgressThread(ProgressOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = CancelledError("the communicator was destroyed");
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Work> ProgressThread::Enqueue(std::string what,
                                              std::unique_ptr<DeviceOperation> operation,
                                              bool started) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok() && waiting_.size() >= kMaxWaitingDeviceOperations) {
    status_ = ResourceExhaustedError(absl::StrCat(kMaxWaitingDeviceOperations,
                                                  " collectives wait already", options_.where,
                                                  "; wait for some of them first"));
    changed_.notify_all();
  }
  if (!status_.ok()) return FinishedWork(status_);
  Entry entry;
  entry.what = std::move(what);
  entry.operation = std::move(operation);
  entry.started = started;
  entry.work = std::make_shared<Work>();
  entry.number = ++enqueued_;
  auto work = entry.work;
  waiting_.push_back(std::move(entry));
  ++unfinished_;
  changed_.notify_all();
  return work;
}

void ProgressThread::Fail(const Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = status;
  changed_.notify_all();
}

Status ProgressThread::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

bool ProgressThread::idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return unfinished_ == 0;
}

Status ProgressThread::Annotated(const Entry& entry, const Status& status) const {
  return Status(status.code(), absl::StrCat(entry.what, ", call ", entry.number, options_.where,
                                            ": ", status.message()));
}

void ProgressThread::Run() {
  options_.begin();
  RunWhileHealthy();
  EndAfterFailure();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stopping_; });
}

void ProgressThread::RunWhileHealthy() {
  bool can_start = false;
  const auto news = [this, &can_start] {
    return !status_.ok() || (can_start && !waiting_.empty());
  };
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      can_start = started_.size() < kMaxStartedOperations;
      WaitFor(changed_, lock, started_.empty() ? kHealthInterval : kPollInterval, news);
      if (!status_.ok()) return;
    }
    if (can_start) StartNext();
    if (!started_.empty()) PollOldest();
    PollHealth();
  }
}

void ProgressThread::StartNext() {
  Entry entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty()) return;
    entry = std::move(waiting_.front());
    waiting_.pop_front();
  }
  if (!entry.started) {
    const Status status = entry.operation->Start(MonoNow() + options_.timeout);
    if (!status.ok()) Fail(Annotated(entry, status));
  }
  started_.push_back(std::move(entry));
}

void ProgressThread::PollOldest() {
  Entry& oldest = started_.front();
  const Result<DeviceOperation::Stage> stage = oldest.operation->Poll();
  if (!stage.ok()) return Fail(Annotated(oldest, stage.status()));
  if (*stage == DeviceOperation::Stage::kDone) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --unfinished_;
    }
    oldest.work->Complete(OkStatus(), oldest.operation->duration());
    return started_.pop_front();
  }
  if (*stage != DeviceOperation::Stage::kRunning) return;
  const MonoTime now = MonoNow();
  if (oldest.runs_since == MonoTime::Never()) oldest.runs_since = now;
  if (now - oldest.runs_since < absl::FromChrono(options_.timeout)) return;
  Fail(Annotated(oldest,
                 DeadlineExceededError(absl::StrCat(
                     "not done after ", absl::FormatDuration(absl::FromChrono(options_.timeout)),
                     "; some rank is stuck, or has made another call"))));
}

void ProgressThread::PollHealth() {
  const MonoTime now = MonoNow();
  if (now < next_health_check_) return;
  next_health_check_ = now + kHealthInterval;
  const Status health = options_.check_health();
  if (health.ok()) return;
  if (!started_.empty()) return Fail(Annotated(started_.front(), health));
  Fail(Status(health.code(), absl::StrCat(health.message(), options_.where)));
}

void ProgressThread::EndAfterFailure() {
  options_.quiesce();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::deque<Entry>* const entries : {&started_, &waiting_}) {
    for (Entry& entry : *entries) entry.work->Complete(status_, std::chrono::nanoseconds(0));
    entries->clear();
  }
  unfinished_ = 0;
}

}  // namespace cadre::nccl
