// A worker whose operations are requests to a store (proto/store.proto), wherever that is.
#ifndef CADRE_WORKER_RUNTIME_STORE_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_WORKER_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "proto/store.pb.h"
#include "worker_runtime/worker.h"

namespace cadre {

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

  // Blocks for the answer, request.wait_ms and what a call takes at most. The status is the
  // store's, or why it cannot be reached. Any thread.
  virtual absl::Status Send(v1::StoreRequest request, v1::StoreReply* reply) = 0;

 private:
  absl::StatusOr<v1::StoreReply> Execute(v1::StoreRequest request,
                                         absl::Duration wait = absl::ZeroDuration());

  WorkerPlace place_;
  const uint64_t client_;
  std::atomic<uint64_t> next_request_id_{1};
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_STORE_WORKER_H_
