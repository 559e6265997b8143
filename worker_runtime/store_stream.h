// A worker's store operations on one socket to its agent (rpc/frames/store_frames.h). It is
// connected when it is needed, and anew after it broke.
//
// Thread safe, without a thread of its own: of those who wait one reads for all, so that an answer
// is there without a switch to another thread.
#ifndef CADRE_WORKER_RUNTIME_STORE_STREAM_H_
#define CADRE_WORKER_RUNTIME_STORE_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/store.pb.h"

namespace cadre {

class StoreStream {
 public:
  // `agent_socket`: the agent's, for gRPC.
  StoreStream(const std::string& agent_socket, const std::string& token);
  // Nobody waits any more.
  ~StoreStream();
  StoreStream(const StoreStream&) = delete;
  StoreStream& operator=(const StoreStream&) = delete;

  // Fills in the reply to this request, whose id must be unique and not 0; the reply's code is not
  // looked at. UNAVAILABLE: there is no agent, or it is gone, and the same request may be made
  // again. DEADLINE_EXCEEDED, without a message: no answer within `limit`. Or why the agent
  // refuses.
  absl::Status Execute(const v1::StoreRequest& request, absl::Duration limit,
                       v1::StoreReply* reply);

 private:
  // Unmoved by changes of the wall clock, which absl::Mutex in this version is not.
  using Clock = std::chrono::steady_clock;
  struct Connection;
  struct Waiter {
    v1::StoreReply* reply;
    std::optional<absl::Status> end;
    std::condition_variable woken;
  };

  // All with mutex_ held; those that get the lock let it go while they wait.
  absl::Status Connect();
  void WriteAll(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  void ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  // Answers whom it has read for; not OK: why the connection is no good any more.
  absl::Status Answer(Connection& connection);
  // Ends this connection, and all who wait for it.
  void Break(const std::shared_ptr<Connection>& connection, const absl::Status& why);
  // Somebody else reads from now on.
  void PassOn();

  const std::string path_;
  const std::string token_;

  std::mutex mutex_;
  // Null when there is none.
  std::shared_ptr<Connection> connection_;
  std::map<uint64_t, Waiter*> waiters_;  // by request id
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_STORE_STREAM_H_
