// A collective that has been started. After c10d's Work, with a deadline and a status.
#ifndef CADRE_WORKER_RUNTIME_WORK_H_
#define CADRE_WORKER_RUNTIME_WORK_H_

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cadre {

// Thread safe. The buffers of the collective belong to it until it is done.
class Work {
 public:
  // OK, or what the communicator said; DEADLINE_EXCEEDED when it is not done after `timeout`.
  absl::Status Wait(absl::Duration timeout);
  bool done() const;
  // How long the collective itself ran; zero until it is done, and where the call that started it
  // also finished it without looking at a clock.
  absl::Duration duration() const;

  // For communicators: called once.
  void Complete(const absl::Status& status, absl::Duration duration);

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  // Written under the mutex, which those who wait need; read without, because most never wait.
  std::atomic<bool> done_{false};
  // Fixed once it is done.
  absl::Status status_;
  absl::Duration duration_;
};

// A work that is done already.
std::shared_ptr<Work> FinishedWork(const absl::Status& status,
                                   absl::Duration duration = absl::ZeroDuration());

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_WORK_H_
