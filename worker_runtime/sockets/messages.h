// A rank's messages: for each other rank and direction a thread that sends, or receives, one after
// the other.
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
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/work.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/sockets/message_channel.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

enum class Direction { kSend, kReceive };

// Thread safe.
class Messages {
 public:
  struct Listener {
    std::function<void()> begin;
    // What the message ends with, given how the channel ended; `call` says which message it was.
    std::function<Status(const std::string& call, int peer, const Status& status)> end;
  };

  // The connections, by rank, must outlive this.
  Messages(int rank, const std::vector<wire::Connection>& connections,
           std::chrono::nanoseconds timeout, Listener listener);

  // The arguments are checked. A message for which no thread can be started ends at once, with
  // RESOURCE_EXHAUSTED.
  std::shared_ptr<Work> Start(Direction direction, const Buffer& buffer, int peer, int tag);

  // Those that wait, and those that come, fail with `status`; the first one stays.
  void Fail(const Status& status);
  // Waits for those under way, which the caller makes end first. Nothing may be started any more.
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
