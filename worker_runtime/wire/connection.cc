#include "worker_runtime/wire/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace cadre::wire {
namespace {

msghdr MessageOf(const iovec* parts, size_t count) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return message;
}

ssize_t SendSealed(int socket, RecordWriter& writer, Parts parts) {
  ssize_t taken = 0;
  while (parts.left() > 0) {
    // Else the last call left some of a record.
    if (writer.content_bytes() == 0) writer.Seal(parts);
    const size_t content_bytes = writer.content_bytes();
    CADRE_CHECK(content_bytes <= parts.left(), parts.left(), " bytes to send, fewer than before");
    const absl::string_view output = writer.output();
    const ssize_t sent = send(socket, output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      // For good, unless the socket is only full.
      if (errno != EAGAIN && errno != EINTR) writer.RemovePrefix(output.size());
      return taken > 0 ? taken : -1;
    }
    writer.RemovePrefix(static_cast<size_t>(sent));
    if (writer.content_bytes() > 0) continue;
    parts.Skip(content_bytes);
    taken += static_cast<ssize_t>(content_bytes);
  }
  return taken;
}

ssize_t ReceiveSealed(int socket, RecordReader& reader, Parts parts) {
  ssize_t given = 0;
  while (true) {
    const ssize_t read = reader.Read(parts);
    if (read < 0) {
      errno = EBADMSG;
      return -1;
    }
    given += read;
    parts.Skip(static_cast<size_t>(read));
    if (parts.left() == 0) return given;
    const iovec room = reader.room();
    const ssize_t got = recv(socket, room.iov_base, room.iov_len, MSG_DONTWAIT);
    if (got <= 0) return given > 0 ? given : got;
    reader.Add(static_cast<size_t>(got));
  }
}

}  // namespace

Connection::Connection(ScopedFd socket, std::optional<RecordKeys> keys)
    : socket_(std::move(socket)) {
  if (!keys.has_value()) return;
  writer_ = std::make_unique<RecordWriter>(std::move(keys->outgoing));
  reader_ = std::make_unique<RecordReader>(std::move(keys->incoming));
}

ssize_t Connection::Send(const iovec* parts, size_t count) const {
  if (writer_ != nullptr) return SendSealed(socket_.get(), *writer_, Parts(parts, count));
  const msghdr message = MessageOf(parts, count);
  return sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Connection::Receive(const iovec* parts, size_t count) const {
  if (reader_ != nullptr) return ReceiveSealed(socket_.get(), *reader_, Parts(parts, count));
  msghdr message = MessageOf(parts, count);
  return recvmsg(socket_.get(), &message, MSG_DONTWAIT);
}

ssize_t Connection::Send(absl::string_view bytes) const {
  const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  return Send(&part, 1);
}

ssize_t Connection::Receive(void* bytes, size_t size) const {
  const iovec part = {bytes, size};
  return Receive(&part, 1);
}

std::string EndText(int error) {
  if (error == 0) return "it closed the connection";
  // The sockets themselves never say this.
  if (error == EBADMSG) return kAlteredText;
  return ErrnoText(error);
}

}  // namespace cadre::wire
