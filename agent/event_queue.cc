#include "agent/event_queue.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cadre {

absl::StatusOr<std::unique_ptr<EventQueue>> EventQueue::Make() {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<EventQueue>(new EventQueue(fd));
}

EventQueue::~EventQueue() { close(fd_); }

void EventQueue::Add(AgentEvent event) {
  events_.push_back(std::move(event));
  // Those behind the first are found by the same wake-up.
  if (events_.size() != 1) return;
  const uint64_t one = 1;
  const ssize_t written = write(fd_, &one, sizeof(one));
  static_cast<void>(written);  // fails only when the counter is at its limit, that is readable
}

absl::Status EventQueue::PushRequest(v1::StoreRequest request) {
  absl::MutexLock lock(&mutex_);
  if (events_.size() >= kMaxQueuedRequests) {
    return absl::ResourceExhaustedError("this node's agent is overloaded; try again later");
  }
  Add(WorkerAsked{std::move(request)});
  return absl::OkStatus();
}

void EventQueue::Push(AgentEvent event) {
  absl::MutexLock lock(&mutex_);
  if (events_.size() >= kMaxQueuedEvents) {
    overflowed_ = true;
    return;
  }
  Add(std::move(event));
}

std::vector<AgentEvent> EventQueue::TakeAll() {
  absl::MutexLock lock(&mutex_);
  if (events_.empty()) return {};
  uint64_t count = 0;
  const ssize_t got = read(fd_, &count, sizeof(count));
  static_cast<void>(got);  // readable: the first event wrote to it
  return std::exchange(events_, {});
}

bool EventQueue::overflowed() const {
  absl::MutexLock lock(&mutex_);
  return overflowed_;
}

}  // namespace cadre
