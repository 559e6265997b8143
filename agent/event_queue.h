// Events from other threads (the server link, gRPC) to the daemon's loop. Thread safe.
//
// A store operation that arrives while the loop waits is handled on the thread that posts it
// (base/threads/executor.h).
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

// Most of them are answers to workers' requests, of which kMaxStoreCalls may be pending.
inline constexpr size_t kMaxQueuedEvents = 4 * 65536;

class EventQueue {
 public:
  // Handles one event, on the loop's thread; must not block.
  using Handler = std::function<void(const AgentEvent&)>;
  // `due`: the loop's next deadline, asked after another thread has handled a store operation in
  // its place. Without it all events are handled by the loop.
  static absl::StatusOr<std::unique_ptr<EventQueue>> Make(Handler handler,
                                                          std::function<MonoTime()> due = nullptr);
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Readable while the loop has events to handle.
  int fd() const { return fd_; }

  // May call the handler. Over the limit the event is dropped and overflowed() stays true.
  void Push(AgentEvent event);

  // Called by the loop before it waits: other threads may handle events from now on, until
  // HandleAll. They wake the loop if its deadline moves to before `until`.
  void Rest(MonoTime until) { executor_.Rest(until); }
  // Waits until no other thread handles an event, then handles the queued ones.
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
