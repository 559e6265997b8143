#include "agent/event_queue.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/check.h"

namespace cadre::agent {
namespace {

bool IsOfStore(const AgentEvent& event) {
  if (std::holds_alternative<StoreRequested>(event)) return true;
  const auto* received = std::get_if<ServerMessageReceived>(&event);
  return received != nullptr && received->message.has_store();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventQueue>> EventQueue::Make(Handler handler,
                                                             std::function<MonoTime()> due) {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<EventQueue>(new EventQueue(fd, std::move(handler), std::move(due)));
}

EventQueue::EventQueue(int fd, Handler handler, std::function<MonoTime()> due)
    : fd_(fd), handler_(std::move(handler)), executor_({std::move(due), [this] { WakeLoop(); }}) {
  CADRE_CHECK(handler_ != nullptr, "a queue needs a handler");
}

EventQueue::~EventQueue() { close(fd_); }

void EventQueue::WakeLoop() {
  const uint64_t one = 1;
  const ssize_t written = write(fd_, &one, sizeof(one));
  static_cast<void>(written);  // fails only if the counter is at its limit, which means readable
  readable_ = true;
}

void EventQueue::Push(AgentEvent event) {
  const bool anywhere = IsOfStore(event);
  if (anywhere && executor_.Enter()) {
    handler_(event);
    executor_.Leave();
    return;
  }
  Executor::Task task;
  task.run = [this, event = std::move(event)] { handler_(event); };
  task.anywhere = anywhere;
  task.bytes = 1;
  if (!executor_.Add(std::move(task), {kMaxQueuedEvents})) overflowed_ = true;
}

void EventQueue::HandleAll() {
  if (readable_.exchange(false)) {
    uint64_t count = 0;
    const ssize_t got = read(fd_, &count, sizeof(count));
    static_cast<void>(got);  // readable: WakeLoop wrote to it
  }
  for (Executor::Task& task : executor_.Take()) task.run();
}

}  // namespace cadre::agent
