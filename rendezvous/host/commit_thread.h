// A thread that saves, so that its user need not wait for the disk. It is started with the first
// batch, and ends with this object after the batch that it has. Where no thread can be had its user
// waits for the disk after all. A compaction is given up when this object ends.
#ifndef CADRE_RENDEZVOUS_HOST_COMMIT_THREAD_H_
#define CADRE_RENDEZVOUS_HOST_COMMIT_THREAD_H_

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rendezvous/host/batch_saver.h"

namespace cadre::host {

class CommitThread final : public BatchSaver {
 public:
  CommitThread() = default;
  ~CommitThread() override;

  void Begin(log::RecordLog& log, log::RecordRows records) override;
  std::optional<Outcome> Take(bool wait) override;
  // On a second thread, which is there for as long as it takes.
  void BeginCompaction(log::RecordLog& log, std::unique_ptr<log::Shortener> shortener) override;
  std::optional<absl::Status> TakeCompacted() override;

 private:
  void Run();
  bool HasToDo() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return log_ != nullptr || ending_; }
  bool IsDone() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return outcome_.has_value(); }

  std::thread thread_;  // used by the one that calls Begin
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Set while there is a batch to be saved, or being saved.
  log::RecordLog* log_ ABSL_GUARDED_BY(mutex_) = nullptr;
  log::RecordRows records_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);

  std::thread compacting_;  // used by the one that calls BeginCompaction
  std::atomic<bool> stop_compacting_{false};
  std::optional<absl::Status> compacted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_COMMIT_THREAD_H_
