// Saves the core's records before its messages are sent, as core.h requires, and the thread that
// saves. The effects of one batch of events are saved together. One thread uses all of this.
//
// While one batch is being saved on another thread, the effects of the next are held. Saving the
// next begins after the first is saved, so that the core is ahead of the disk by two batches at
// most.
//
// The log is compacted on another thread: with a state of some 100 MB that takes seconds, in which
// the core could not renew leases.
//
// If saving fails, the effects are held in order and saving is retried; the host refuses new work
// meanwhile, so that little is held. Until then only lease renewals are sent, and only if no other
// server can have taken over the state; otherwise they are dropped. If another server has the state
// (ABORTED), nothing is sent any more.
#ifndef CADRE_RENDEZVOUS_HOST_COMMIT_QUEUE_H_
#define CADRE_RENDEZVOUS_HOST_COMMIT_QUEUE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/step/effects.h"

namespace cadre::host {

// Saves a batch of records, or compacts the log, while its caller continues. Between Begin and the
// outcome that Take returns, only a compaction may use the log too.
class BatchSaver {
 public:
  struct Outcome {
    absl::Status status;
    absl::Duration took;
    // The records, if saving them failed.
    log::RecordRows records;
  };

  virtual ~BatchSaver() = default;

  // Appends them to the log. Must not be called before Take has returned the outcome of the last
  // batch.
  virtual void Begin(log::RecordLog& log, log::RecordRows records) = 0;
  // Returns the outcome of the last batch, once; nullopt while it is being saved, unless `wait`:
  // then this blocks until it is saved.
  virtual std::optional<Outcome> Take(bool wait) = 0;

  // Compacts the log while batches are appended to it. It must not be called before TakeCompacted
  // has returned the outcome of the last compaction. This implementation has finished when it
  // returns.
  virtual void BeginCompaction(log::RecordLog& log, std::unique_ptr<log::Compactor> compactor) {
    const std::atomic<bool> stop{false};
    compacted_ = log.Compact(*compactor, stop);
  }
  // The outcome of a compaction, once; nullopt while it runs.
  virtual std::optional<absl::Status> TakeCompacted() {
    return std::exchange(compacted_, std::nullopt);
  }

 private:
  std::optional<absl::Status> compacted_;
};

// A thread that saves, so that its user need not wait for the disk. It starts with the first batch;
// the destructor lets the current batch finish and cancels a compaction. If no thread can be
// created, its user waits for the disk after all.
class CommitThread final : public BatchSaver {
 public:
  CommitThread() = default;
  ~CommitThread() override;

  void Begin(log::RecordLog& log, log::RecordRows records) override;
  std::optional<Outcome> Take(bool wait) override;
  // Runs on a second thread, which ends with the compaction.
  void BeginCompaction(log::RecordLog& log, std::unique_ptr<log::Compactor> compactor) override;
  std::optional<absl::Status> TakeCompacted() override;

 private:
  void Run();
  bool HasToDo() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return log_ != nullptr || ending_; }
  bool IsDone() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return outcome_.has_value(); }

  std::thread thread_;  // used by the thread that calls Begin
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Set while a batch is to be saved or is being saved.
  log::RecordLog* log_ ABSL_GUARDED_BY(mutex_) = nullptr;
  log::RecordRows records_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);

  std::thread compacting_;  // used by the thread that calls BeginCompaction
  std::atomic<bool> stop_compacting_{false};
  std::optional<absl::Status> compacted_ ABSL_GUARDED_BY(mutex_);
};

// The intervals at which a failed save and a failed compaction are retried.
inline constexpr absl::Duration kSaveRetry = absl::Milliseconds(250);
inline constexpr absl::Duration kCompactionRetry = absl::Seconds(30);
// The limit of events that are saved as one batch: the first of them waits for the last, which
// comes some 10 ms later.
inline constexpr size_t kEventsPerCommit = 2048;

class CommitQueue {
 public:
  struct Host {
    // Sends effects whose records are saved.
    std::function<void(Effects)> deliver;
    // Makes an object that replaces the saved records by fewer records for the same state.
    std::function<std::unique_ptr<log::Compactor>()> compactor;
    // Writes a line to the server's log.
    std::function<void(const std::string&)> log_line;
    // Reports how long it took to save records.
    std::function<void(absl::Duration)> saved;
  };

  // Without a log nothing is saved, and effects are sent at once.
  CommitQueue(std::unique_ptr<log::RecordLog> log, std::unique_ptr<BatchSaver> saver, Host host);

  // Delivers the effects at once unless they or earlier effects have to be saved first.
  void Add(MonoTime now, Effects effects);
  // Saves and delivers all held effects; blocks.
  void Commit(MonoTime now);
  // Delivers the effects saved since, and begins to save the held ones unless a batch is still
  // being saved. Blocks until that is saved if a whole batch is held (kEventsPerCommit).
  void CommitInBackground(MonoTime now);
  bool is_saving() const { return !saving_.empty(); }
  // Blocks until the batch being saved is saved, and delivers its effects.
  void AwaitSaved(MonoTime now) { TakeSaved(now, true); }

  // Whether effects are held and may be saved now, or a batch is being saved.
  bool WantsCommit() const { return (!held_.empty() || !saving_.empty()) && save_error_.ok(); }
  // OK, or why nothing can be saved at present.
  const absl::Status& save_error() const { return save_error_; }
  // When Commit should be called even if no event comes.
  MonoTime NextDeadline() const { return save_error_.ok() ? MonoTime::Never() : retry_at_; }

 private:
  // Returns false if a batch is still being saved.
  bool TakeSaved(MonoTime now, bool wait);
  void Hold(Effects effects);
  void AnswerRenewals(Effects* effects);
  void EnterSaveFailure(absl::Status why);
  void Deliver(std::vector<Effects>* effects);
  // Must not be called while a batch is being saved.
  void CompactIfDue(MonoTime now);

  const std::unique_ptr<log::RecordLog> log_;
  const std::unique_ptr<BatchSaver> saver_;
  const Host host_;
  // Not yet being saved: the effects of several events, their records, and the number of events.
  std::vector<Effects> held_;
  log::RecordRows records_;
  size_t events_ = 0;
  // Effects that are sent once `saver_` has saved their records.
  std::vector<Effects> saving_;
  absl::Status save_error_;
  MonoTime retry_at_;
  MonoTime compact_at_;
  bool compacting_ = false;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_COMMIT_QUEUE_H_
