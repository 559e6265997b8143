#include "agent/event_queue.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace cadre::agent {
namespace {

// Whether the event is of a store operation.
bool IsOfStore(const AgentEvent& event) {
  if (std::holds_alternative<WorkerAsked>(event)) return true;
  const auto* said = std::get_if<ServerSaid>(&event);
  return said != nullptr && said->message.has_store();
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
  CADRE_CHECK(handler_ != nullptr, "nobody handles events");
}

EventQueue::~EventQueue() { close(fd_); }

void EventQueue::WakeLoop() {
  const uint64_t one = 1;
  const ssize_t written = write(fd_, &one, sizeof(one));
  static_cast<void>(written);  // fails only when the counter is at its limit, that is readable
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
