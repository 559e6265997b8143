// A connection between two ranks that have proved themselves, in clear or encrypted.
#ifndef CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_
#define CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "worker_runtime/wire/records.h"

namespace cadre::wire {

// Owns a non-blocking socket. One thread at a time in each direction.
class Connection {
 public:
  // There is none.
  Connection() = default;
  // Without keys: in clear.
  explicit Connection(ScopedFd socket, std::optional<RecordKeys> keys = std::nullopt);

  bool ok() const { return socket_.ok(); }
  // For poll() and shutdown().
  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  // As sendmsg() and recvmsg() on a socket that does not block: how many bytes were sent or
  // received, or -1, and errno says why. Wait with poll() only after that was fewer than all: an
  // encrypted connection may hold bytes that have come already.
  //
  // The next Send() must begin with all that this one was given and did not take: an encrypted
  // connection may have sent a part of the record that they are in.
  ssize_t Send(const iovec* parts, size_t count) const;
  // 0: the peer has closed the connection. EBADMSG: what came is not what the peer sent.
  ssize_t Receive(const iovec* parts, size_t count) const;

  ssize_t Send(absl::string_view bytes) const;
  ssize_t Receive(void* bytes, size_t size) const;

 private:
  ScopedFd socket_;
  // Null: in clear.
  std::unique_ptr<RecordWriter> writer_;
  std::unique_ptr<RecordReader> reader_;
};

// Why this side ended a connection (EBADMSG).
inline constexpr char kAlteredText[] = "what came was altered on its way";

// Why a connection ended, by the errno that Send() or Receive() left; 0: its other side closed it.
std::string EndText(int error);

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_
