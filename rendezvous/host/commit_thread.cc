#include "rendezvous/host/commit_thread.h"

#include <system_error>
#include <utility>

#include "base/clock.h"

namespace cadre::host {
namespace {

BatchSaver::Outcome Save(log::RecordLog& log, log::RecordRows records) {
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
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
  stop_compacting_ = true;
  if (compacting_.joinable()) compacting_.join();
}

void CommitThread::BeginCompaction(log::RecordLog& log, std::unique_ptr<log::Shortener> shortener) {
  const auto compact = [this, &log](std::unique_ptr<log::Shortener> with) {
    absl::Status compacted = log.Compact(*with, stop_compacting_);
    // It has a copy of all that is saved.
    with.reset();
    const absl::MutexLock lock(&mutex_);
    compacted_ = std::move(compacted);
  };
  try {
    compacting_ = std::thread(compact, std::move(shortener));
  } catch (const std::system_error& error) {
    const absl::MutexLock lock(&mutex_);
    compacted_ = absl::ResourceExhaustedError(error.what());
  }
}

std::optional<absl::Status> CommitThread::TakeCompacted() {
  std::optional<absl::Status> compacted;
  {
    const absl::MutexLock lock(&mutex_);
    compacted = std::exchange(compacted_, std::nullopt);
  }
  if (compacted.has_value() && compacting_.joinable()) compacting_.join();
  return compacted;
}

void CommitThread::Begin(log::RecordLog& log, log::RecordRows records) {
  const absl::MutexLock lock(&mutex_);
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    outcome_ = Save(log, std::move(records));
    return;
  }
  log_ = &log;
  records_ = std::move(records);
}

std::optional<BatchSaver::Outcome> CommitThread::Take(bool wait) {
  const absl::MutexLock lock(&mutex_);
  if (wait) mutex_.Await(absl::Condition(this, &CommitThread::IsDone));
  return std::exchange(outcome_, std::nullopt);
}

void CommitThread::Run() {
  for (;;) {
    log::RecordLog* log;
    log::RecordRows records;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CommitThread::HasToDo));
      if (log_ == nullptr) return;
      log = log_;
      records = std::move(records_);
    }
    Outcome outcome = Save(*log, std::move(records));
    const absl::MutexLock lock(&mutex_);
    log_ = nullptr;
    outcome_ = std::move(outcome);
  }
}

}  // namespace cadre::host
