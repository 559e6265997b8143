// Calls that may take long, made where nobody may wait so long.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_BOUNDED_CALL_H_
#define CADRE_WORKER_RUNTIME_MEMORY_BOUNDED_CALL_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "cadre/result.h"

namespace cadre::memory {

// One at a time, each on a thread of its own. One thread makes them.
class BoundedCall {
 public:
  using Call = std::function<Result<std::string>()>;

  explicit BoundedCall(absl::Duration patience) : patience_(patience) {}
  // Waits for the one that runs.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // What it comes to. DEADLINE_EXCEEDED: it has not ended within the patience, and goes on, or one
  // before it still does. Behind such a one nothing is waited for until one has ended in time.
  Result<std::string> Make(Call call);
  // Whether the next one will not be waited for.
  bool is_late() const;

 private:
  const absl::Duration patience_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_late_ ABSL_GUARDED_BY(mutex_) = false;
  Result<std::string> answer_ ABSL_GUARDED_BY(mutex_) = std::string();
  std::thread thread_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_BOUNDED_CALL_H_
