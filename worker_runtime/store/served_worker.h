// A worker whose store another process of the same launch serves over TCP.
#ifndef CADRE_WORKER_RUNTIME_STORE_SERVED_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_SERVED_WORKER_H_

#include <atomic>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/store/call_stream.h"
#include "worker_runtime/store/enter_store.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::store {

class ServedWorker : public StoreWorker {
 public:
  // `server`: who serves there, for errors. Connects with the first call.
  ServedWorker(const StoreAddress& at, std::string server, const WorkerPlace& place);

  // Nobody shows it: there is no launcher of ours.
  void ReportProgress(int64_t, double, double) override {}

 protected:
  // This machine's address, as the store's machine sees it; empty before the first call.
  std::string local_address() const;

 private:
  Result<keyspace::Reply> Send(keyspace::Request request) override;
  Result<Entry> Enter();

  const StoreAddress at_;
  const std::string server_;
  const int rank_;
  mutable std::mutex mutex_;
  std::string local_address_ ABSL_GUARDED_BY(mutex_);
  CallStream calls_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_SERVED_WORKER_H_
