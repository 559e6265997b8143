// A thread that saves, so that its user need not wait for the disk. It is started with the first
// batch, and ends with this object after the batch that it has. Where no thread can be had its user
// waits for the disk after all.
#ifndef CADRE_RENDEZVOUS_HOST_COMMIT_THREAD_H_
#define CADRE_RENDEZVOUS_HOST_COMMIT_THREAD_H_

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "rendezvous/host/batch_saver.h"

namespace cadre {

class CommitThread final : public BatchSaver {
 public:
  CommitThread() = default;
  ~CommitThread() override;

  void Begin(RecordLog& log, RecordRows records) override;
  std::optional<Outcome> Take(bool wait) override;

 private:
  void Run();

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool ending_ = false;
  // Set while there is a batch to be saved, or being saved.
  RecordLog* log_ = nullptr;
  RecordRows records_;
  std::optional<Outcome> outcome_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_HOST_COMMIT_THREAD_H_
