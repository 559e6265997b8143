#include "agent/cluster/file_calls.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace cadre::agent {

FileCalls::FileCalls()
    : news_(std::make_shared<ScopedFd>(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))) {}

FileThread* FileCalls::ThreadOf(const std::string& key) {
  const auto found = threads_.find(key);
  if (found != threads_.end()) return found->second.get();
  if (threads_.size() >= kFileThreadsMax) {
    const auto idle = std::find_if(threads_.begin(), threads_.end(), [](const auto& thread) {
      return thread.second->Drain(absl::ZeroDuration());
    });
    if (idle == threads_.end()) return nullptr;
    threads_.erase(idle);
  }
  return (threads_[key] = std::make_unique<FileThread>(FileThread::Options())).get();
}

bool FileCalls::Start(const std::string& key, Call call, MonoTime now) {
  FileThread* const thread = waiting_.size() < kFileCallsMax ? ThreadOf(key) : nullptr;
  if (thread == nullptr) return false;
  auto result = std::make_shared<Result>();
  waiting_.push_back({result, now + call.limit, std::move(call.late)});
  thread->Post([result, work = std::move(call.work), news = news_] {
    result->then = work();
    result->done = true;
    const uint64_t one = 1;
    // Fails only where it is readable anyway.
    [[maybe_unused]] const ssize_t n = write(news->get(), &one, sizeof(one));
  });
  return true;
}

bool FileCalls::StandsStill(const std::string& key, MonoTime now) const {
  const auto found = threads_.find(key);
  return found != threads_.end() && found->second->StandsStill(now);
}

void FileCalls::Handle(MonoTime now) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd(), &count, sizeof(count));
  std::list<Waiting> over;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto next = std::next(it);
    if (it->result->done || now >= it->until) over.splice(over.end(), waiting_, it);
    it = next;
  }
  for (Waiting& call : over) {
    const Then& then = call.result->done ? call.result->then : call.late;
    if (then != nullptr) then();
  }
}

MonoTime FileCalls::NextDeadline() const {
  MonoTime next = MonoTime::Never();
  for (const Waiting& call : waiting_) next = std::min(next, call.until);
  return next;
}

void FileCalls::Drain() {
  for (const auto& [key, thread] : threads_) {
    // One moment for all of them.
    if (!thread->Drain(kDrainLimit)) return;
  }
}

}  // namespace cadre::agent
