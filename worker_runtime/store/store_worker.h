// A worker whose operations are requests to a store (rendezvous/keyspace), wherever that is.
#ifndef CADRE_WORKER_RUNTIME_STORE_STORE_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_STORE_WORKER_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/keyspace/request.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/worker.h"

namespace cadre::store {

// What a call may take beyond the time it waits.
inline constexpr absl::Duration kCallMargin = absl::Seconds(10);

// Thread safe, once it knows its place.
class StoreWorker : public Worker {
 public:
  const WorkerPlace& place() const override { return place_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired) override;
  absl::Status Delete(absl::string_view key) override;
  absl::Status Barrier(absl::string_view name, absl::Duration timeout) override;
  absl::Status PublishCommunicatorId(absl::string_view communicator, absl::string_view id) override;
  absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                             absl::Duration timeout) override;

 protected:
  StoreWorker();
  void MoveTo(const WorkerPlace& place) { place_ = place; }

  // Blocks for the answer, request.wait_ms and kCallMargin at most. What is not OK says why the
  // store cannot be reached; the reply may carry the store's own error. Any thread.
  virtual absl::StatusOr<keyspace::Reply> Send(keyspace::Request request) = 0;

  // Names a call of this worker.
  uint64_t NextId() { return next_id_++; }
  // As a request of this worker travels to whoever serves it.
  rpc::WorkerCall CallOf(keyspace::Request request) const;
  // The other way round.
  static keyspace::Reply ReplyOf(rpc::WorkerReply reply);

 private:
  absl::StatusOr<keyspace::Reply> Execute(keyspace::Operation operation,
                                          absl::Duration wait = absl::ZeroDuration());

  WorkerPlace place_;
  const uint64_t client_;
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_STORE_WORKER_H_
