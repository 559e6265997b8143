#include "worker_runtime/work.h"

#include "absl/strings/str_cat.h"
#include "base/steady_wait.h"

namespace cadre {

absl::Status Work::Wait(absl::Duration timeout) {
  if (done()) return status_;
  std::unique_lock<std::mutex> lock(mutex_);
  if (!WaitFor(completed_, lock, timeout, [this] { return done(); })) {
    return absl::DeadlineExceededError(
        absl::StrCat("the collective was not done after ", absl::FormatDuration(timeout)));
  }
  return status_;
}

bool Work::done() const { return done_.load(std::memory_order_acquire); }

absl::Duration Work::duration() const { return done() ? duration_ : absl::ZeroDuration(); }

void Work::Complete(const absl::Status& status, absl::Duration duration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  duration_ = duration;
  done_.store(true, std::memory_order_release);
  completed_.notify_all();
}

std::shared_ptr<Work> FinishedWork(const absl::Status& status, absl::Duration duration) {
  // One for all that went well, and one that nobody counts: the smallest collectives take less time
  // than an allocation.
  static Work* const ok = [] {
    auto* const work = new Work;
    work->Complete(absl::OkStatus(), absl::ZeroDuration());
    return work;
  }();
  if (status.ok() && duration == absl::ZeroDuration()) {
    return std::shared_ptr<Work>(std::shared_ptr<Work>(), ok);
  }
  auto work = std::make_shared<Work>();
  work->Complete(status, duration);
  return work;
}

}  // namespace cadre
