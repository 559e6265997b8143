// Looks at the connections of operations that take long, from a thread of its own.
#ifndef CADRE_WORKER_RUNTIME_GLOO_STALL_WATCH_H_
#define CADRE_WORKER_RUNTIME_GLOO_STALL_WATCH_H_

#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker_runtime/gloo/watched_transport.h"

namespace cadre {

// How often they are looked at: a connection that closed in the middle of a message is noticed
// within four times this.
constexpr absl::Duration kStallCheckInterval = absl::Milliseconds(250);

// Thread safe.
class StallWatch {
 public:
  // `context` must outlive this.
  explicit StallWatch(WatchedContext* context);
  ~StallWatch();

  // Around each operation.
  void Begin();
  void End();

 private:
  void Run();

  WatchedContext* const context_;
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_GLOO_STALL_WATCH_H_
