#include "worker_runtime/sockets/messages.h"

#include <chrono>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "worker_runtime/backend/call_text.h"

namespace cadre::sockets {
namespace {

std::string TextOf(Direction direction, const Buffer& buffer, int peer, int tag) {
  return absl::StrCat(direction == Direction::kSend ? "send to rank " : "receive from rank ", peer,
                      " of ", backend::TextOf(buffer), " with tag ", tag);
}

}  // namespace

Messages::Messages(int rank, const std::vector<wire::Connection>& connections,
                   std::chrono::nanoseconds timeout, Listener listener)
    : rank_(rank), connections_(connections), timeout_(timeout), listener_(std::move(listener)) {}

Result<Messages::Traffic*> Messages::TrafficWith(const Key& key) {
  const auto found = traffic_.find(key);
  if (found != traffic_.end()) return found->second.get();
  try {
    auto traffic = std::make_unique<Traffic>(connections_[key.first], rank_, key.first);
    return traffic_.emplace(key, std::move(traffic)).first->second.get();
  } catch (const std::system_error& error) {
    return backend::NoThreadError(rank_, error);
  }
}

std::shared_ptr<Work> Messages::Start(Direction direction, const Buffer& buffer, int peer,
                                      int tag) {
  Status no_thread;
  {
    absl::MutexLock lock(&mutex_);
    if (!failed_.ok()) return FinishedWork(failed_);
    const Result<Traffic*> traffic = TrafficWith({peer, direction});
    if (traffic.ok()) {
      const MessageChannel& channel = (*traffic)->channel;
      return (*traffic)->thread.Enqueue([this, &channel, direction, buffer, peer, tag]() -> Status {
        const MonoTime deadline = MonoNow() + timeout_;
        listener_.begin();
        const Status status = direction == Direction::kSend
                                  ? channel.Send(buffer, tag, deadline)
                                  : channel.Receive(buffer, tag, deadline);
        return listener_.end(TextOf(direction, buffer, peer, tag), peer, status);
      });
    }
    no_thread = traffic.status();
  }
  // Which fails all others, and needs the lock for that.
  listener_.begin();
  return FinishedWork(listener_.end(TextOf(direction, buffer, peer, tag), peer, no_thread));
}

void Messages::Fail(const Status& status) {
  absl::MutexLock lock(&mutex_);
  failed_.Update(status);
  for (auto& [key, traffic] : traffic_) traffic->thread.Fail(failed_);
}

void Messages::Stop() {
  std::map<Key, std::unique_ptr<Traffic>> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(traffic_);
  }
}

}  // namespace cadre::sockets
