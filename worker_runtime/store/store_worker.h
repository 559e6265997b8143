// A worker whose operations are requests to a store (rendezvous/keyspace), wherever that is.
#ifndef CADRE_WORKER_RUNTIME_STORE_STORE_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_STORE_WORKER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "rendezvous/keyspace/store_request.h"
#include "rpc/worker_protocol.h"

namespace cadre::store {

// The time that a call may take in addition to what it waits.
inline constexpr absl::Duration kCallMargin = absl::Seconds(10);

// Thread safe, once its place is set.
class StoreWorker : public Worker {
 public:
  const WorkerPlace& place() const override { return place_; }

  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, std::chrono::nanoseconds timeout) override;
  Result<int64_t> Add(std::string_view key, int64_t delta) override;
  Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                    std::string_view desired) override;
  Status Delete(std::string_view key) override;
  Status Barrier(std::string_view name, std::chrono::nanoseconds timeout) override;
  Status PublishCommunicatorId(std::string_view communicator, std::string_view id) override;
  Result<std::string> CommunicatorId(std::string_view communicator,
                                     std::chrono::nanoseconds timeout) override;

 protected:
  StoreWorker();
  void MoveTo(const WorkerPlace& place) { place_ = place; }

  // Blocks for the answer, at most request.wait_ms plus kCallMargin. An error means that the store
  // cannot be reached; the reply may carry the store's own error. May be called on any thread.
  virtual Result<keyspace::Reply> Send(keyspace::Request request) = 0;

  // Returns a new id for a call of this worker.
  uint64_t NextId() { return next_id_++; }
  // Converts a request of this worker to the call that is sent to the server.
  rpc::WorkerCall CallOf(keyspace::Request request) const;
  // Converts the server's reply back.
  static keyspace::Reply ReplyOf(rpc::WorkerReply reply);

 private:
  Result<keyspace::Reply> Execute(keyspace::Operation operation,
                                  std::chrono::nanoseconds wait = {});

  WorkerPlace place_;
  const uint64_t client_;
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_STORE_WORKER_H_
