// Messages from one rank to another on a connection of their own.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_MESSAGE_CHANNEL_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_MESSAGE_CHANNEL_H_

#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/status.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// One direction; one thread at a time. The connection must outlive this.
//   UNAVAILABLE        the connection has ended
//   DEADLINE_EXCEEDED  the peer did not take, or send, all of it
//   INVALID_ARGUMENT   what comes is not what is received: says what came
class MessageChannel {
 public:
  MessageChannel(const wire::Connection& connection, int own_rank, int peer)
      : connection_(connection), own_rank_(own_rank), peer_(peer) {}

  Status Send(const Buffer& buffer, int tag, MonoTime deadline) const;
  Status Receive(const Buffer& buffer, int tag, MonoTime deadline) const;

 private:
  Status SendBytes(const void* data, size_t bytes, MonoTime deadline) const;
  Status ReceiveBytes(void* data, size_t bytes, MonoTime deadline) const;
  Status Await(short event, MonoTime deadline) const;
  Status Lost(int error) const;

  const wire::Connection& connection_;
  const int own_rank_;
  const int peer_;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_MESSAGE_CHANNEL_H_
