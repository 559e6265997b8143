#include "agent/event_queue.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cadre {
namespace {

// Whether the event is of a store operation.
bool IsOfStore(const AgentEvent& event) {
  if (std::holds_alternative<WorkerAsked>(event)) return true;
  const auto* said = std::get_if<ServerSaid>(&event);
  return said != nullptr && said->message.has_store();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventQueue>> EventQueue::Make(Handler handler) {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<EventQueue>(new EventQueue(fd, std::move(handler)));
}

EventQueue::~EventQueue() { close(fd_); }

void EventQueue::WakeLoop() {
  if (std::exchange(readable_, true)) return;
  const uint64_t one = 1;
  const ssize_t written = write(fd_, &one, sizeof(one));
  static_cast<void>(written);  // fails only when the counter is at its limit, that is readable
}

void EventQueue::Add(AgentEvent event) {
  events_.push_back(std::move(event));
  // Who handles events in the loop's place looks here when done.
  if (holder_ != Holder::kPoster) WakeLoop();
}

bool EventQueue::Enter(const AgentEvent& event) {
  if (handler_ == nullptr || holder_ != Holder::kNobody || loop_waits_ || !events_.empty() ||
      !IsOfStore(event)) {
    return false;
  }
  holder_ = Holder::kPoster;
  return true;
}

void EventQueue::HandleHere(AgentEvent event) {
  bool look = false;
  for (;;) {
    if (handler_(event)) look = true;
    const absl::MutexLock lock(&mutex_);
    if (loop_waits_ || events_.empty() || !IsOfStore(events_.front())) {
      holder_ = Holder::kNobody;
      if (look || !events_.empty()) WakeLoop();
      return;
    }
    event = std::move(events_.front());
    events_.pop_front();
  }
}

absl::Status EventQueue::PushRequest(v1::StoreRequest request) {
  AgentEvent event = WorkerAsked{std::move(request)};
  {
    const absl::MutexLock lock(&mutex_);
    if (!Enter(event)) {
      if (events_.size() >= kMaxQueuedRequests) {
        return absl::ResourceExhaustedError("this node's agent is overloaded; try again later");
      }
      Add(std::move(event));
      return absl::OkStatus();
    }
  }
  HandleHere(std::move(event));
  return absl::OkStatus();
}

void EventQueue::Push(AgentEvent event) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!Enter(event)) {
      if (events_.size() >= kMaxQueuedEvents) {
        overflowed_ = true;
      } else {
        Add(std::move(event));
      }
      return;
    }
  }
  HandleHere(std::move(event));
}

void EventQueue::Rest() {
  const absl::MutexLock lock(&mutex_);
  holder_ = Holder::kNobody;
}

std::deque<AgentEvent> EventQueue::TakeAll() {
  const absl::MutexLock lock(&mutex_);
  loop_waits_ = true;
  mutex_.Await(absl::Condition(this, &EventQueue::NoPoster));
  loop_waits_ = false;
  holder_ = Holder::kLoop;
  if (std::exchange(readable_, false)) {
    uint64_t count = 0;
    const ssize_t got = read(fd_, &count, sizeof(count));
    static_cast<void>(got);  // readable: WakeLoop wrote to it
  }
  return std::exchange(events_, {});
}

bool EventQueue::overflowed() const {
  const absl::MutexLock lock(&mutex_);
  return overflowed_;
}

}  // namespace cadre
