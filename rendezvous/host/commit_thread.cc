#include "rendezvous/host/commit_thread.h"

#include <system_error>
#include <utility>

#include "base/clock.h"

namespace cadre {
namespace {

BatchSaver::Outcome Save(RecordLog& log, RecordRows records) {
  BatchSaver::Outcome outcome;
  const MonoTime before = MonoNow();
  outcome.status = log.Append(records);
  outcome.took = MonoNow() - before;
  if (!outcome.status.ok()) outcome.records = std::move(records);
  return outcome;
}

}  // namespace

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
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    outcome_ = Save(log, std::move(records));
    return;
  }
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
    RecordRows records = std::move(records_);
    lock.unlock();
    Outcome outcome = Save(*log, std::move(records));
    lock.lock();
    log_ = nullptr;
    outcome_ = std::move(outcome);
    changed_.notify_all();
  }
}

}  // namespace cadre
