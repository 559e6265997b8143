// A collective that has been started. Modeled on c10d's Work, with a deadline and a status.
#ifndef CADRE_WORK_H_
#define CADRE_WORK_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "cadre/status.h"

namespace cadre {

// Thread safe. The buffers of the collective belong to it until it is done.
class Work {
 public:
  // Returns the collective's status, or DEADLINE_EXCEEDED if it is not done after `timeout`.
  Status Wait(std::chrono::nanoseconds timeout);
  bool done() const;
  // How long the collective ran; zero until it is done, and if the call that started it also
  // finished it without reading a clock.
  std::chrono::nanoseconds duration() const;

  // Called by communicators, once.
  void Complete(const Status& status, std::chrono::nanoseconds duration);

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  // Written under the mutex, which waiting threads need; read without it, because most callers
  // never wait.
  std::atomic<bool> done_{false};
  // Constant once it is done.
  Status status_;
  std::chrono::nanoseconds duration_{};
};

// Returns a work that is already done.
std::shared_ptr<Work> FinishedWork(const Status& status,
                                   std::chrono::nanoseconds duration = std::chrono::nanoseconds(0));

}  // namespace cadre

#endif  // CADRE_WORK_H_
