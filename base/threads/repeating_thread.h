// Runs work again and again at an interval, such as a look at files that may be replaced.
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
  // Calls `work` on a thread of its own, first after `interval`, and then one interval after each
  // call has ended.
  RepeatingThread(std::chrono::nanoseconds interval, std::function<void()> work);
  // Waits for a running call.
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
