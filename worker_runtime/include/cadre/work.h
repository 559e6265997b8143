// A collective that has been started. After c10d's Work, with a deadline and a status.
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
  // OK, or what the communicator said; DEADLINE_EXCEEDED when it is not done after `timeout`.
  Status Wait(std::chrono::nanoseconds timeout);
  bool done() const;
  // How long the collective itself ran; zero until it is done, and where the call that started it
  // also finished it without looking at a clock.
  std::chrono::nanoseconds duration() const;

  // For communicators: called once.
  void Complete(const Status& status, std::chrono::nanoseconds duration);

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  // Written under the mutex, which those who wait need; read without, because most never wait.
  std::atomic<bool> done_{false};
  // Fixed once it is done.
  Status status_;
  std::chrono::nanoseconds duration_{};
};

// A work that is done already.
std::shared_ptr<Work> FinishedWork(const Status& status,
                                   std::chrono::nanoseconds duration = std::chrono::nanoseconds(0));

}  // namespace cadre

#endif  // CADRE_WORK_H_
