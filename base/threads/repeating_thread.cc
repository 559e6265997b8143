#include "base/threads/repeating_thread.h"

#include <utility>

namespace cadre {

RepeatingThread::RepeatingThread(std::chrono::nanoseconds interval, std::function<void()> work)
    : thread_([this, interval, work = std::move(work)] {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!changed_.wait_for(lock, interval, [this] { return stopping_; })) {
          lock.unlock();
          work();
          lock.lock();
        }
      }) {}

RepeatingThread::~RepeatingThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace cadre
