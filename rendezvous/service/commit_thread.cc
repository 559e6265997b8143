#include "rendezvous/service/commit_thread.h"

#include <utility>

#include "base/clock.h"

namespace cadre {

CommitThread::~CommitThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void CommitThread::Begin(RecordLog& log, RecordRows records) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  log_ = &log;
  records_ = std::move(records);
  changed_.notify_all();
}

std::optional<BatchSaver::Outcome> CommitThread::Take(bool wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (wait) changed_.wait(lock, [this] { return outcome_.has_value(); });
  return std::exchange(outcome_, std::nullopt);
}

void CommitThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return log_ != nullptr || ending_; });
    if (log_ == nullptr) return;
    RecordLog* const log = log_;
    Outcome outcome;
    outcome.records = std::move(records_);
    lock.unlock();
    const MonoTime before = MonoNow();
    outcome.status = log->Append(outcome.records);
    outcome.took = MonoNow() - before;
    if (outcome.status.ok()) outcome.records = {};
    lock.lock();
    log_ = nullptr;
    outcome_ = std::move(outcome);
    changed_.notify_all();
  }
}

}  // namespace cadre
