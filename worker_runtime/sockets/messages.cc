#include "worker_runtime/sockets/messages.h"

#include <errno.h>
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/sockets/tcp_socket.h"

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
  // end() makes all other messages fail, for which it needs the lock.
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

namespace {

constexpr int kPollMillis = 1000;

// Precedes every message.
struct Header {
  uint64_t count;
  int32_t tag;
  DataType type;
};

std::string Text(uint64_t count, DataType type, int tag) {
  return absl::StrCat(count, " ", backend::Name(type), " with tag ", tag);
}

}  // namespace

Status MessageChannel::Send(const Buffer& buffer, int tag, MonoTime deadline) const {
  const Header header = {buffer.count, tag, buffer.type};
  RETURN_IF_ERROR(SendBytes(&header, sizeof(header), deadline));
  return SendBytes(buffer.data, buffer.count * SizeOf(buffer.type), deadline);
}

Status MessageChannel::Receive(const Buffer& buffer, int tag, MonoTime deadline) const {
  Header header = {};
  RETURN_IF_ERROR(ReceiveBytes(&header, sizeof(header), deadline));
  if (header.count != buffer.count || header.type != buffer.type || header.tag != tag) {
    return InvalidArgumentError(
        absl::StrCat("rank ", own_rank_, " waits for ", Text(buffer.count, buffer.type, tag),
                     ", but rank ", peer_, " sent ", Text(header.count, header.type, header.tag)));
  }
  return ReceiveBytes(buffer.data, buffer.count * SizeOf(buffer.type), deadline);
}

Status MessageChannel::SendBytes(const void* data, size_t bytes, MonoTime deadline) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = connection_.Send({at, bytes});
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Await(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Lost(errno);
    }
  }
  return OkStatus();
}

Status MessageChannel::ReceiveBytes(void* data, size_t bytes, MonoTime deadline) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = connection_.Receive(at, bytes);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0) {
      return Lost(0);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Await(POLLIN, deadline));
    } else if (errno != EINTR) {
      return Lost(errno);
    }
  }
  return OkStatus();
}

Status MessageChannel::Await(short event, MonoTime deadline) const {
  pollfd one = {connection_.fd(), event, 0};
  poll(&one, 1, MillisUntil(deadline, kPollMillis));
  if (one.revents != 0 || MonoNow() < deadline) return OkStatus();
  return DeadlineExceededError(absl::StrCat(
      "rank ", peer_, event == POLLOUT ? " did not take" : " did not send", " a message in time"));
}

Status MessageChannel::Lost(int error) const {
  return UnavailableError(absl::StrCat("the connection with rank ", peer_, " ended",
                                       error == 0 ? "" : absl::StrCat(": ", wire::EndText(error))));
}

}  // namespace cadre::sockets
