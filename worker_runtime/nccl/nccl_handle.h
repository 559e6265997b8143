// One ncclComm_t, non-blocking, with the rules that NCCL has for it: one thread inside at a time,
// nothing new before the last call has settled, and an end that nobody waits for without bound.
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

// How long whoever ends a communicator waits for it; afterwards a thread of its own goes on.
constexpr absl::Duration kAbortWait = absl::Milliseconds(800);

class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    int device = 0;
  };
  // Asked about once a second while a communicator forms; an error ends that.
  using Look = std::function<Status()>;

  // Forms a communicator with the others that have `ids`, on the current device. `api` lives as
  // long as the process.
  static Result<std::shared_ptr<NcclHandle>> Form(const NcclApi& api, const Place& place,
                                                  const std::vector<std::string>& ids,
                                                  MonoTime deadline, const Look& look);
  // Ends the communicator without waiting for it.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  const NcclApi& api() const { return api_; }
  const Place& place() const { return place_; }

  // Calls `call` and waits until NCCL has taken it on. `what` names it in errors. ABORTED: the
  // communicator has ended, or ends meanwhile.
  Status Run(absl::string_view what, MonoTime deadline,
             const std::function<ncclResult_t(ncclComm_t)>& call);
  // The status of ncclCommGetAsyncError; OK while another thread is inside, and after the end.
  Status CheckHealth();

  // Null: `color` is negative. UNIMPLEMENTED: NCCL is older than 2.18.
  Result<std::shared_ptr<NcclHandle>> Split(int color, int key, MonoTime deadline);

  // Makes Run() and the like, which another thread may be in, return. Abort() is to follow.
  void Interrupt();
  // Waits until all has reached its receivers, then ends the communicator; a peer that takes
  // longer than `deadline` ends it too.
  void Finish(MonoTime deadline);
  // Ends the communicator; what runs on the device stops. DEADLINE_EXCEEDED: after `wait` a thread
  // of its own goes on with it. Idempotent.
  Status Abort(absl::Duration wait);

  // Of memory that `data` begins; a handle for Deregister.
  Result<void*> Register(void* data, size_t bytes, MonoTime deadline);
  void Deregister(void* registration);

 private:
  NcclHandle(const NcclApi& api, const Place& place) : api_(api), place_(place) {}

  // Waits until no other thread is inside NCCL; then only this one is, until Leave().
  bool Enter(MonoTime deadline);
  void Leave();
  // Until `result`, or what the communicators say after it, is no longer "in progress".
  Status Settle(ncclResult_t result, ncclComm_t communicator, absl::string_view what,
                MonoTime deadline, const Look& look);

  const NcclApi& api_;
  Place place_;
  std::atomic<bool> ending_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool abort_began_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // By who is inside; null after the end.
  ncclComm_t communicator_ = nullptr;
};

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_HANDLE_H_
