#include "worker_runtime/sockets/message_channel.h"

#include <errno.h>
#include <poll.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::sockets {
namespace {

constexpr int kPollMillis = 1000;

// What goes before every message.
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
