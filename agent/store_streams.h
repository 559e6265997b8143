// Serves the store to this node's workers, each on a stream of its own (LocalStore.Converse).
#ifndef CADRE_AGENT_STORE_STREAMS_H_
#define CADRE_AGENT_STORE_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/local_store.grpc.pb.h"
#include "proto/store.pb.h"

namespace cadre {

// Operations of all streams that may wait for an answer at once; one more is refused.
inline constexpr size_t kMaxStreamedCalls = 65536;
// Of one stream, answers that it has not read included; beyond that nothing more is read from it.
inline constexpr size_t kMaxCallsPerStream = 1024;

// Thread safe.
class StoreStreams final : public v1::LocalStore::CallbackService {
 public:
  // Takes a worker's request; on gRPC's threads, must not block. An error is the answer.
  using OnRequest = std::function<absl::Status(v1::StoreRequest)>;

  StoreStreams(std::string token, OnRequest on_request)
      : token_(std::move(token)), on_request_(std::move(on_request)) {}

  // Goes to every stream that waits for this client and request id.
  void Answer(const v1::StoreReply& reply);
  // Ends every stream with this, also those to come.
  void FinishAll(const grpc::Status& status);

  grpc::ServerBidiReactor<v1::StoreRequest, v1::StoreReply>* Converse(
      grpc::CallbackServerContext* context) override;

 private:
  class Stream;
  using Key = std::pair<uint64_t, uint64_t>;  // client, request id

  void Ask(const std::shared_ptr<Stream>& from, v1::StoreRequest request);
  absl::Status Remember(const Key& key, const std::shared_ptr<Stream>& from);
  // False when somebody else answers it.
  bool Forget(const Key& key, const std::shared_ptr<Stream>& from);
  void Leave(const std::shared_ptr<Stream>& stream);

  const std::string token_;
  const OnRequest on_request_;
  absl::Mutex mutex_;
  // Set: everything ends with this.
  std::unique_ptr<grpc::Status> closed_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  // A request that is repeated on another stream waits beside the first one.
  std::multimap<Key, std::shared_ptr<Stream>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre

#endif  // CADRE_AGENT_STORE_STREAMS_H_
