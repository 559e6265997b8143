// Events from other threads (the server link, gRPC) to the daemon's loop. Thread safe.
//
// A store operation that comes while the loop waits is handled by who posts it, on his thread,
// since waking the loop's takes longer. Only one thread handles events at any time, in the order in
// which they came.
#ifndef CADRE_AGENT_EVENT_QUEUE_H_
#define CADRE_AGENT_EVENT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

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
  // Handles a request of a worker, or its answer, in the loop's place; must not block. True: the
  // loop must look around before the moment at which it would.
  using Handler = std::function<bool(const AgentEvent&)>;
  // Without a handler all events are the loop's.
  static absl::StatusOr<std::unique_ptr<EventQueue>> Make(Handler handler = nullptr);
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Readable while there is something to do for the loop.
  int fd() const { return fd_; }

  // Both may call the handler. RESOURCE_EXHAUSTED: the loop does not keep up.
  absl::Status PushRequest(v1::StoreRequest request);
  // An event that cannot be refused. Over the limit it is lost and overflowed() is true for good.
  void Push(AgentEvent event);

  // For the loop: others may handle events from now on, until TakeAll.
  void Rest();
  // Waits until nobody else handles one.
  std::deque<AgentEvent> TakeAll();
  bool overflowed() const;

 private:
  enum class Holder { kNobody, kLoop, kPoster };

  EventQueue(int fd, Handler handler) : fd_(fd), handler_(std::move(handler)) {}
  // Whether the caller handles this event now.
  bool Enter(const AgentEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After Enter: this event, and those for which the loop is not needed that came meanwhile.
  void HandleHere(AgentEvent event) ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(AgentEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NoPoster() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return holder_ != Holder::kPoster; }

  const int fd_;
  const Handler handler_;
  mutable absl::Mutex mutex_;
  Holder holder_ ABSL_GUARDED_BY(mutex_) = Holder::kLoop;
  bool loop_waits_ ABSL_GUARDED_BY(mutex_) = false;  // for a poster to end
  bool readable_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<AgentEvent> events_ ABSL_GUARDED_BY(mutex_);
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cadre

#endif  // CADRE_AGENT_EVENT_QUEUE_H_
