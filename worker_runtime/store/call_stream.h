// Calls of a worker on one socket (rpc/worker_protocol.h). It is connected when it is needed, and
// anew after it broke.
//
// Thread safe, without a thread of its own: of those who wait one reads for all, so that an answer
// is there without a switch to another thread.
#ifndef CADRE_WORKER_RUNTIME_STORE_CALL_STREAM_H_
#define CADRE_WORKER_RUNTIME_STORE_CALL_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/store/entry.h"

namespace cadre::store {

class CallStream {
 public:
  // Gives a connection, or why there is none.
  using Connector = std::function<Result<Entry>()>;
  // `token`: what the other side wants to see first; nullopt: nothing.
  CallStream(Connector connector, std::optional<std::string> token);
  // Nobody waits any more.
  ~CallStream();
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;

  // The reply to this call, whose id must be unique and not 0; its code is not looked at.
  // UNAVAILABLE: the other side is not there, or gone, and the same call may be made again.
  // DEADLINE_EXCEEDED, without a message: no answer within `limit`. Or why it refuses this client.
  Result<rpc::WorkerReply> Call(const rpc::WorkerCall& call, absl::Duration limit);
  // From now on calls end with CANCELLED, those that wait included.
  void Close();

 private:
  // Unmoved by changes of the wall clock, which absl::Mutex in this version is not.
  using Clock = std::chrono::steady_clock;
  struct Connection;
  struct Waiter {
    rpc::WorkerReply reply;
    std::optional<Status> end;
    std::condition_variable woken;
  };

  // All with mutex_ held; those that get the lock let it go while they wait.
  Status Connect();
  void WriteAll(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  void ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  // Answers those it has read for; not OK: why the connection is no good any more.
  Status Answer(Connection& connection);
  // Ends this connection, and all who wait for it.
  void Break(const std::shared_ptr<Connection>& connection, const Status& why);
  // Somebody else reads from now on.
  void PassOn();

  const Connector connector_;
  const std::optional<std::string> token_;

  std::mutex mutex_;
  bool closed_ = false;
  // Null when there is none.
  std::shared_ptr<Connection> connection_;
  std::map<uint64_t, Waiter*> waiters_;  // by the call's id
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_CALL_STREAM_H_
