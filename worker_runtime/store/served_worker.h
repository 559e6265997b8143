// A worker whose store is served over TCP by another process of the same launch. Both sides prove
// that they know the store's key (sockets/handshake.h), which is never sent over the network.
#ifndef CADRE_WORKER_RUNTIME_STORE_SERVED_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_SERVED_WORKER_H_

#include <atomic>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/store/call_stream.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::store {

// Limits connecting and the proofs together.
inline constexpr absl::Duration kStoreConnectTimeout = absl::Seconds(5);

struct StoreAddress {
  std::string endpoint;  // "10.0.0.1:4567"
  std::string key;       // known only to the ranks; never logged
};

// Returns a connection for calls of rpc/worker_protocol.h without a token, encrypted if
// CADRE_ENCRYPT is set. Waits at most kStoreConnectTimeout. A peer whose machine has failed is
// detected within 15 s.
//   UNAVAILABLE        nothing listens there, or it did not answer, or not yet
//   PERMISSION_DENIED  the server that listens there does not know the key
//   FAILED_PRECONDITION  one side encrypts and the other does not
Result<StoreConnection> ConnectToStore(const StoreAddress& at, int rank);

class ServedWorker : public StoreWorker {
 public:
  // `server` describes the serving process in errors. Connects with the first call.
  ServedWorker(const StoreAddress& at, std::string server, const WorkerPlace& place);

  // Does nothing: without Cadre's launcher, progress is not displayed.
  void ReportProgress(int64_t, double, double) override {}

 protected:
  // This machine's address, as the store's machine sees it; empty before the first call.
  std::string local_address() const;

 private:
  Result<keyspace::Reply> Send(keyspace::Request request) override;
  Result<StoreConnection> Connect();

  const StoreAddress at_;
  const std::string server_;
  const int rank_;
  mutable std::mutex mutex_;
  std::string local_address_ ABSL_GUARDED_BY(mutex_);
  CallStream calls_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_SERVED_WORKER_H_
