// Events from other threads (the server link, gRPC) to the daemon's loop. Thread safe.
//
// An event of a store operation that comes while the loop waits is handled on the thread that posts
// it (base/threads/executor.h).
#ifndef CADRE_AGENT_EVENT_QUEUE_H_
#define CADRE_AGENT_EVENT_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "agent/core/agent_core.h"
#include "base/threads/executor.h"
#include "base/time.h"

namespace cadre::agent {

// Most are answers to workers' requests, of which kMaxStoreCalls may wait.
inline constexpr size_t kMaxQueuedEvents = 4 * 65536;

class EventQueue {
 public:
  // Handles one event, on the loop's thread; must not block.
  using Handler = std::function<void(const AgentEvent&)>;
  // `due`: when the loop has to look around, as it stands after an event of a store operation that
  // another thread has handled in its place. Without it all events are handled by the loop.
  static absl::StatusOr<std::unique_ptr<EventQueue>> Make(Handler handler,
                                                          std::function<MonoTime()> due = nullptr);
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Readable while there is something to do for the loop.
  int fd() const { return fd_; }

  // May call the handler. Over the limit the event is lost and overflowed() is true for good.
  void Push(AgentEvent event);

  // For the loop: other threads may handle events from now on, until HandleAll. They wake it when
  // it has to look around before `until`.
  void Rest(MonoTime until) { executor_.Rest(until); }
  // Waits until nobody else handles one, and handles what has come.
  void HandleAll();
  bool overflowed() const { return overflowed_; }

 private:
  EventQueue(int fd, Handler handler, std::function<MonoTime()> due);
  void WakeLoop();

  const int fd_;
  const Handler handler_;
  std::atomic<bool> readable_{false};
  std::atomic<bool> overflowed_{false};
  Executor executor_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVENT_QUEUE_H_
