// A rank's messages to other ranks. For each other rank and direction one thread sends or receives
// them in order, on a connection of these two ranks.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_MESSAGES_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_MESSAGES_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/work.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// Sends and receives messages between two ranks on a connection of their own.
//
// At most one thread at a time may use each direction. The connection must outlive this object.
//   UNAVAILABLE        the connection has ended
//   DEADLINE_EXCEEDED  the peer did not take, or send, all of the message in time
//   INVALID_ARGUMENT   the message differs from what the receive expects; the text describes it
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

enum class Direction { kSend, kReceive };

// Thread safe.
class Messages {
 public:
  struct Listener {
    std::function<void()> begin;
    // Returns the message's final status, given the channel's; `call` describes the message.
    std::function<Status(const std::string& call, int peer, const Status& status)> end;
  };

  // `connections` is indexed by rank and must outlive this object.
  Messages(int rank, const std::vector<wire::Connection>& connections,
           std::chrono::nanoseconds timeout, Listener listener);

  // The caller has checked the arguments. If no thread can be started, the message ends at once
  // with RESOURCE_EXHAUSTED.
  std::shared_ptr<Work> Start(Direction direction, const Buffer& buffer, int peer, int tag);

  // Makes waiting and later messages fail with `status`. The first status is kept.
  void Fail(const Status& status);
  // Waits for running messages, which the caller must make end first. Start() is not allowed after
  // it.
  void Stop();

 private:
  struct Traffic {
    Traffic(const wire::Connection& connection, int own_rank, int peer)
        : channel(connection, own_rank, peer) {}
    const MessageChannel channel;
    backend::OperationThread thread;
  };
  using Key = std::pair<int, Direction>;

  Result<Traffic*> TrafficWith(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  const std::vector<wire::Connection>& connections_;
  const std::chrono::nanoseconds timeout_;
  const Listener listener_;
  absl::Mutex mutex_;
  Status failed_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::unique_ptr<Traffic>> traffic_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_MESSAGES_H_
