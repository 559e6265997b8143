// Events from other threads (the server link, gRPC) to the daemon's loop. Thread safe.
#ifndef CADRE_AGENT_EVENT_QUEUE_H_
#define CADRE_AGENT_EVENT_QUEUE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/core/agent_core.h"

namespace cadre {

// Requests of workers that may lie in the queue; and, beyond them, what the server says, which
// mostly answers such requests.
inline constexpr size_t kMaxQueuedRequests = 65536;
inline constexpr size_t kMaxQueuedEvents = 4 * kMaxQueuedRequests;

class EventQueue {
 public:
  static absl::StatusOr<std::unique_ptr<EventQueue>> Make();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Readable while events wait.
  int fd() const { return fd_; }

  // RESOURCE_EXHAUSTED: the loop does not keep up.
  absl::Status PushRequest(v1::StoreRequest request);
  // An event that cannot be refused. Over the limit it is lost and overflowed() is true for good.
  void Push(AgentEvent event);

  std::vector<AgentEvent> TakeAll();
  bool overflowed() const;

 private:
  explicit EventQueue(int fd) : fd_(fd) {}
  void Add(AgentEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int fd_;
  mutable absl::Mutex mutex_;
  std::vector<AgentEvent> events_ ABSL_GUARDED_BY(mutex_);
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cadre

#endif  // CADRE_AGENT_EVENT_QUEUE_H_
