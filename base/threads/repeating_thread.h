// Work that is done again and again, at an interval: looks at files that somebody may replace, say.
#ifndef CADRE_BASE_THREADS_REPEATING_THREAD_H_
#define CADRE_BASE_THREADS_REPEATING_THREAD_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace cadre {

class RepeatingThread {
 public:
  // Calls `work` on a thread of its own, for the first time after `interval`, and then as long
  // after each end.
  RepeatingThread(std::chrono::nanoseconds interval, std::function<void()> work);
  // Waits for the call that is under way.
  ~RepeatingThread();
  RepeatingThread(const RepeatingThread&) = delete;
  RepeatingThread& operator=(const RepeatingThread&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_BASE_THREADS_REPEATING_THREAD_H_
