// One non-blocking ncclComm_t, used by NCCL's rules: only one thread is inside NCCL at a time, no
// call is made before the last one has settled, and no caller waits for its end without a limit.
// Thread safe. Only where CADRE_WITH_NCCL is defined.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_HANDLE_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_HANDLE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "worker_runtime/nccl/nccl_api.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::nccl {

// A caller that ends a communicator waits this long; after that a background thread goes on.
constexpr absl::Duration kAbortWait = absl::Milliseconds(800);

class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    int device = 0;
  };
  // Called about once a second while a communicator forms; an error ends that.
  using PeriodicCheck = std::function<Status()>;

  // Forms a communicator, on the current device, with the other ranks that have the same `ids`.
  // `api` must live as long as the process.
  static Result<std::shared_ptr<NcclHandle>> Form(const NcclApi& api, const Place& place,
                                                  const std::vector<std::string>& ids,
                                                  MonoTime deadline, const PeriodicCheck& check);
  // Ends the communicator in the background, without waiting for it.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  const NcclApi& api() const { return api_; }
  const Place& place() const { return place_; }

  // Makes `call` and waits until NCCL has accepted it. `what` names it in errors. ABORTED: the
  // communicator has ended or is ending.
  Status Run(absl::string_view what, MonoTime deadline,
             const std::function<ncclResult_t(ncclComm_t)>& call);
  // Returns ncclCommGetAsyncError's status; OK while another thread is inside NCCL or after the
  // end.
  Status CheckHealth();

  // Returns null if `color` is negative. UNIMPLEMENTED: NCCL is older than 2.18.
  Result<std::shared_ptr<NcclHandle>> Split(int color, int key, MonoTime deadline);

  // Makes Run() and similar calls of another thread return. Abort() must follow.
  void Interrupt();
  // Waits until all data has reached its receivers, then ends the communicator. If that takes
  // longer than `deadline`, it is aborted.
  void Finish(MonoTime deadline);
  // Aborts the communicator, which stops what runs on the device. DEADLINE_EXCEEDED: it has not
  // ended within `wait`, and a background thread goes on with it. Idempotent.
  Status Abort(absl::Duration wait);

  // Registers a whole allocation that begins at `data`, and returns a handle for Deregister().
  Result<void*> Register(void* data, size_t bytes, MonoTime deadline);
  void Deregister(void* registration);

 private:
  NcclHandle(const NcclApi& api, const Place& place) : api_(api), place_(place) {}

  // Waits until no other thread is inside NCCL, and keeps others out until Leave(). Returns false
  // if `deadline` passes first.
  bool Enter(MonoTime deadline);
  void Leave();
  // Waits until `result`, or the communicator's state after it, is no longer "in progress".
  Status Settle(ncclResult_t result, ncclComm_t communicator, absl::string_view what,
                MonoTime deadline, const PeriodicCheck& check);

  const NcclApi& api_;
  Place place_;
  std::atomic<bool> ending_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool abort_began_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Only for the thread that is inside; null after the end.
  ncclComm_t communicator_ = nullptr;
};

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_HANDLE_H_
