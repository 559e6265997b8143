#include "agent/cluster/file_calls.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <utility>

namespace cadre::agent {

FileCalls::FileCalls(size_t most)
    : most_(most),
      ready_event_(std::make_shared<ScopedFd>(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))) {}

std::shared_ptr<FileCalls::Lane> FileCalls::LaneOf(const std::string& key) {
  const auto found = lanes_.find(key);
  if (found != lanes_.end()) return found->second;
  if (lanes_.size() >= kFileThreadsMax) {
    const auto idle = std::find_if(lanes_.begin(), lanes_.end(), [](const auto& lane) {
      return lane.second->thread.Drain(absl::ZeroDuration());
    });
    if (idle == lanes_.end()) return nullptr;
    lanes_.erase(idle);
  }
  return lanes_[key] = std::make_shared<Lane>();
}

bool FileCalls::Start(const std::string& key, Call call, MonoTime now) {
  const std::shared_ptr<Lane> lane = waiting_.size() < most_ ? LaneOf(key) : nullptr;
  if (lane == nullptr) return false;
  auto result = std::make_shared<Result>();
  waiting_.push_back({result, lane, now, call.limit, std::move(call.late)});
  lane->thread.Post([result, work = std::move(call.work), ready_event = ready_event_] {
    result->then = work();
    result->done = true;
    const uint64_t one = 1;
    // The write fails only if the descriptor is readable anyway.
    [[maybe_unused]] const ssize_t n = write(ready_event->get(), &one, sizeof(one));
  });
  return true;
}

bool FileCalls::IsHung(const std::string& key, MonoTime now) const {
  const auto found = lanes_.find(key);
  return found != lanes_.end() && found->second->thread.IsHung(now);
}

void FileCalls::Handle(MonoTime now) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd(), &count, sizeof(count));
  for (const Waiting& call : waiting_) {
    if (call.result->done) call.lane->got_on = now;
  }
  std::list<Waiting> over;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto next = std::next(it);
    if (it->result->done || now >= it->Until()) over.splice(over.end(), waiting_, it);
    it = next;
  }
  for (Waiting& call : over) {
    const Then& then = call.result->done ? call.result->then : call.late;
    if (then != nullptr) then();
  }
}

MonoTime FileCalls::NextDeadline() const {
  MonoTime next = MonoTime::Never();
  for (const Waiting& call : waiting_) next = std::min(next, call.Until());
  return next;
}

void FileCalls::Drain() {
  for (const auto& [key, lane] : lanes_) {
    // The other lanes are not waited for once one has not finished in time.
    if (!lane->thread.Drain(kDrainLimit)) return;
  }
}

}  // namespace cadre::agent
