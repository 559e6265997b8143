#include "worker_runtime/sockets/messages.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "worker_runtime/backend/call_text.h"

namespace cadre::sockets {

Messages::Messages(int rank, const std::vector<wire::Connection>& connections,
                   std::chrono::nanoseconds timeout, Listener listener)
    : rank_(rank), connections_(connections), timeout_(timeout), listener_(std::move(listener)) {}

std::shared_ptr<Work> Messages::Start(Direction direction, const Buffer& buffer, int peer,
                                      int tag) {
  absl::MutexLock lock(&mutex_);
  if (!failed_.ok()) return FinishedWork(failed_);
  std::unique_ptr<Traffic>& traffic = traffic_[{peer, direction}];
  if (traffic == nullptr) traffic = std::make_unique<Traffic>(connections_[peer], rank_, peer);
  const MessageChannel& channel = traffic->channel;
  return traffic->thread.Enqueue([this, &channel, direction, buffer, peer, tag]() -> Status {
    const MonoTime deadline = MonoNow() + timeout_;
    const bool sends = direction == Direction::kSend;
    listener_.begin();
    const Status status =
        sends ? channel.Send(buffer, tag, deadline) : channel.Receive(buffer, tag, deadline);
    return listener_.end(absl::StrCat(sends ? "send to rank " : "receive from rank ", peer, " of ",
                                      backend::TextOf(buffer), " with tag ", tag),
                         peer, status);
  });
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
