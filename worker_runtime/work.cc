#include "cadre/work.h"

#include <chrono>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/steady_wait.h"

namespace cadre {

Status Work::Wait(std::chrono::nanoseconds timeout) {
  if (done()) return status_;
  std::unique_lock<std::mutex> lock(mutex_);
  if (!WaitFor(completed_, lock, absl::FromChrono(timeout), [this] { return done(); })) {
    return DeadlineExceededError(absl::StrCat(
        "the operation was not done within ", absl::FormatDuration(absl::FromChrono(timeout)),
        ", for which its caller waited; the communicator names the rank that is missing where its "
        "own timeout (CommunicatorOptions::timeout) ends first"));
  }
  return status_;
}

bool Work::done() const { return done_.load(std::memory_order_acquire); }

std::chrono::nanoseconds Work::duration() const {
  return done() ? duration_ : std::chrono::nanoseconds(0);
}

void Work::Complete(const Status& status, std::chrono::nanoseconds duration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  duration_ = duration;
  done_.store(true, std::memory_order_release);
  completed_.notify_all();
}

std::shared_ptr<Work> FinishedWork(const Status& status, std::chrono::nanoseconds duration) {
  // One shared object for all successful works, with a reference that is never released: the
  // smallest collectives take less time than an allocation.
  static Work* const ok = [] {
    auto* const work = new Work;
    work->Complete(OkStatus(), std::chrono::nanoseconds(0));
    return work;
  }();
  if (status.ok() && duration == std::chrono::nanoseconds(0)) {
    return std::shared_ptr<Work>(std::shared_ptr<Work>(), ok);
  }
  auto work = std::make_shared<Work>();
  work->Complete(status, duration);
  return work;
}

}  // namespace cadre
