// A connection between two ranks that have proved themselves, in clear or encrypted.
#ifndef CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_
#define CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "worker_runtime/wire/records.h"

namespace cadre::wire {

// Owns a non-blocking socket. One thread at a time in each direction.
class Connection {
 public:
  // There is none.
  Connection() = default;
  // In clear.
  explicit Connection(ScopedFd socket) : socket_(std::move(socket)) {}
  // Encrypted.
  Connection(ScopedFd socket, RecordKeys keys);

  bool ok() const { return socket_.ok(); }
  // For poll() and shutdown().
  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  // As sendmsg() and recvmsg() have it for a socket that does not block: how many bytes went, or
  // came; less than there are: that is all for now, until the socket is ready again. -1: errno.
  // Where Send() took less than all, or failed with EAGAIN, the next call must begin with what this
  // one left, and bring no less.
  ssize_t Send(const iovec* parts, size_t count) const;
  // EBADMSG: what came is not what the peer sent.
  ssize_t Receive(const iovec* parts, size_t count) const;

  ssize_t Send(absl::string_view bytes) const;
  ssize_t Receive(void* bytes, size_t size) const;

 private:
  ScopedFd socket_;
  // Null: in clear.
  std::unique_ptr<RecordWriter> writer_;
  std::unique_ptr<RecordReader> reader_;
};

// Why a connection ended, by the errno that Send() or Receive() left; 0: its other side closed it.
std::string EndText(int error);

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_
