#include "worker_runtime/nccl/nccl_handle.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "worker_runtime/cuda/device.h"

namespace cadre::nccl {
#ifdef CADRE_WITH_NCCL
namespace {

// NCCL's readiness can only be polled. The first answers come soon, others take seconds.
constexpr std::chrono::microseconds kFirstPoll(10);
constexpr std::chrono::microseconds kLastPoll(1000);
constexpr absl::Duration kCheckInterval = absl::Seconds(1);

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

Status Ended() { return AbortedError("the communicator has ended"); }

Status Lacks(const NcclApi& api, const char* function, const char* since) {
  return UnimplementedError(absl::StrCat("NCCL ", NcclVersionText(api.version), " has no ",
                                         function, "; ", since, " is needed"));
}

std::vector<ncclUniqueId> UniqueIds(const std::vector<std::string>& ids) {
  std::vector<ncclUniqueId> result(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    memcpy(result[i].internal, ids[i].data(), std::min(ids[i].size(), sizeof(ncclUniqueId)));
  }
  return result;
}

}  // namespace

Result<std::shared_ptr<NcclHandle>> NcclHandle::Form(const NcclApi& api, const Place& place,
                                                     const std::vector<std::string>& ids,
                                                     MonoTime deadline,
                                                     const PeriodicCheck& check) {
  std::vector<ncclUniqueId> unique_ids = UniqueIds(ids);
  if (unique_ids.empty()) return InvalidArgumentError("a communicator needs an id");
  if (unique_ids.size() > 1 && api.CommInitRankScalable == nullptr) {
    return Lacks(api, "ncclCommInitRankScalable", "2.23");
  }
  std::shared_ptr<NcclHandle> handle(new NcclHandle(api, place));
  ncclConfig_t config = NonBlocking();
  absl::string_view what = "ncclCommInitRankConfig";
  ncclResult_t result;
  if (unique_ids.size() == 1) {
    result = api.CommInitRankConfig(&handle->communicator_, place.size, unique_ids[0], place.rank,
                                    &config);
  } else {
    what = "ncclCommInitRankScalable";
    result =
        api.CommInitRankScalable(&handle->communicator_, place.size, place.rank,
                                 static_cast<int>(unique_ids.size()), unique_ids.data(), &config);
  }
  const Status status = handle->Settle(result, handle->communicator_, what, deadline, check);
  if (status.ok()) return handle;
  handle->Abort(kAbortWait).IgnoreError();
  return status;
}

NcclHandle::~NcclHandle() {
  if (communicator_ == nullptr) return;
  // No other thread uses the handle now. Aborting takes until running kernels notice it.
  std::thread([&api = api_, communicator = communicator_, device = place_.device] {
    const cuda::CudaDeviceScope scope(device);
    api.CommAbort(communicator);
  }).detach();
}

bool NcclHandle::Enter(MonoTime deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!WaitFor(changed_, lock, deadline - MonoNow(), [this] { return !busy_; })) return false;
  busy_ = true;
  return true;
}

void NcclHandle::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  busy_ = false;
  changed_.notify_all();
}

Status NcclHandle::Settle(ncclResult_t result, ncclComm_t communicator, absl::string_view what,
                          MonoTime deadline, const PeriodicCheck& check) {
  std::chrono::microseconds pause = kFirstPoll;
  MonoTime next_check = MonoNow() + kCheckInterval;
  while (result == ncclInProgress) {
    if (ending_) return Ended();
    const MonoTime now = MonoNow();
    if (now >= deadline) {
      return DeadlineExceededError(absl::StrCat(what, ": NCCL still waits for the other ranks"));
    }
    if (check && now >= next_check) {
      RETURN_IF_ERROR(check());
      next_check = MonoNow() + kCheckInterval;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLastPoll);
    const ncclResult_t asked = api_.CommGetAsyncError(communicator, &result);
    if (asked != ncclSuccess) result = asked;
  }
  return NcclStatus(api_, result, communicator, what);
}

Status NcclHandle::Run(absl::string_view what, MonoTime deadline,
                       const std::function<ncclResult_t(ncclComm_t)>& call) {
  if (!Enter(deadline)) {
    return DeadlineExceededError(absl::StrCat(what, ": another thread is inside NCCL"));
  }
  Status status = Ended();
  if (communicator_ != nullptr && !ending_) {
    status = Settle(call(communicator_), communicator_, what, deadline, nullptr);
  }
  Leave();
  return status;
}

Status NcclHandle::CheckHealth() {
  if (ending_ || !Enter(MonoNow())) return OkStatus();
  Status status;
  if (communicator_ != nullptr) {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = api_.CommGetAsyncError(communicator_, &result);
    if (asked != ncclSuccess) result = asked;
    if (result != ncclInProgress) status = NcclStatus(api_, result, communicator_, "NCCL");
  }
  Leave();
  return status;
}

Result<std::shared_ptr<NcclHandle>> NcclHandle::Split(int color, int key, MonoTime deadline) {
  constexpr absl::string_view kWhat = "ncclCommSplit";
  if (api_.CommSplit == nullptr) return Lacks(api_, "ncclCommSplit", "2.18");
  ncclConfig_t config = NonBlocking();
  // NCCL writes the child from its own thread, before the parent is ready again. If the wait for
  // that fails, the memory must stay valid, so it is leaked.
  auto place = std::make_unique<ncclComm_t>(nullptr);
  const Status made = Run(kWhat, deadline, [&](ncclComm_t parent) {
    // -1 is NCCL_SPLIT_NOCOLOR, which older headers lack.
    const ncclResult_t begun =
        api_.CommSplit(parent, color < 0 ? -1 : color, key, place.get(), &config);
    // NCCL 2.28.9 returns success while it goes on, so the parent is polled.
    return begun == ncclSuccess ? ncclInProgress : begun;
  });
  if (!made.ok()) {
    if (made.code() == StatusCode::kDeadlineExceeded || made.code() == StatusCode::kAborted) {
      place.release();
    }
    return made;
  }
  if (color < 0) return nullptr;
  if (*place == nullptr) return InternalError("ncclCommSplit gave no communicator");
  std::shared_ptr<NcclHandle> child(new NcclHandle(api_, place_));
  child->communicator_ = *place;
  RETURN_IF_ERROR(Settle(ncclInProgress, child->communicator_, kWhat, deadline, nullptr));
  RETURN_IF_ERROR(NcclStatus(api_, api_.CommUserRank(child->communicator_, &child->place_.rank),
                             child->communicator_, "ncclCommUserRank"));
  RETURN_IF_ERROR(NcclStatus(api_, api_.CommCount(child->communicator_, &child->place_.size),
                             child->communicator_, "ncclCommCount"));
  return child;
}

void NcclHandle::Interrupt() { ending_ = true; }

void NcclHandle::Finish(MonoTime deadline) {
  const Status finalized =
      Run("ncclCommFinalize", deadline, [this](ncclComm_t own) { return api_.CommFinalize(own); });
  if (!finalized.ok() || !Enter(deadline)) {
    Abort(kAbortWait).IgnoreError();
    return;
  }
  if (communicator_ != nullptr && !ending_) {
    api_.CommDestroy(communicator_);
    communicator_ = nullptr;
  }
  Leave();
}

Status NcclHandle::Abort(absl::Duration wait) {
  ending_ = true;
  const MonoTime deadline = MonoNow() + wait;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!abort_began_) {
      abort_began_ = true;
      std::thread([self = shared_from_this()] {
        const cuda::CudaDeviceScope scope(self->place_.device);
        // A thread that is inside sees ending_ and leaves. NCCL allows no second thread before
        // that.
        if (!self->Enter(MonoTime::Never())) return;
        if (self->communicator_ != nullptr) self->api_.CommAbort(self->communicator_);
        self->communicator_ = nullptr;
        self->Leave();
        const std::lock_guard<std::mutex> lock(self->mutex_);
        self->ended_ = true;
        self->changed_.notify_all();
      }).detach();
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (WaitFor(changed_, lock, deadline - MonoNow(), [this] { return ended_; })) {
    return OkStatus();
  }
  return DeadlineExceededError(
      absl::StrCat("NCCL did not end its communicator in ", absl::FormatDuration(wait)));
}

Result<void*> NcclHandle::Register(void* data, size_t bytes, MonoTime deadline) {
  if (api_.CommRegister == nullptr || api_.CommDeregister == nullptr) {
    return Lacks(api_, "ncclCommRegister", "2.19");
  }
  void* registration = nullptr;
  RETURN_IF_ERROR(Run("ncclCommRegister", deadline, [&](ncclComm_t own) {
    return api_.CommRegister(own, data, bytes, &registration);
  }));
  return registration;
}

void NcclHandle::Deregister(void* registration) {
  Run("ncclCommDeregister", MonoNow() + absl::Seconds(1), [&](ncclComm_t own) {
    return api_.CommDeregister(own, registration);
  }).IgnoreError();
}

#endif  // CADRE_WITH_NCCL

}  // namespace cadre::nccl
