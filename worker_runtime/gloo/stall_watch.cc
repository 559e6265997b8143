#include "worker_runtime/gloo/stall_watch.h"

namespace cadre {

StallWatch::StallWatch(WatchedContext* context) : context_(context) {
  thread_ = std::thread([this] { Run(); });
}

StallWatch::~StallWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void StallWatch::Begin() {
  absl::MutexLock lock(&mutex_);
  ++running_;
}

void StallWatch::End() {
  absl::MutexLock lock(&mutex_);
  --running_;
}

void StallWatch::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || running_ > 0;
  };
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(&has_work));
    if (stopping_) return;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kStallCheckInterval)) return;
    mutex_.Unlock();
    context_->CheckAwaitedRanks();
    mutex_.Lock();
  }
}

}  // namespace cadre
