#include "worker_runtime/nccl/abort_together.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/steady_wait.h"

namespace cadre::nccl {
namespace {

// Shared with threads that may live longer than the call.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;  // guarded by mutex
};

}  // namespace

Status AbortTogether(std::vector<std::unique_ptr<Communicator>> communicators,
                     absl::Duration wait) {
  const size_t all = communicators.size();
  if (all > kMaxAbortedTogether) {
    return InvalidArgumentError(
        absl::StrCat(all, " communicators; ", kMaxAbortedTogether, " can be aborted together"));
  }
  auto pending = std::make_shared<Pending>();
  pending->count = all;
  for (std::unique_ptr<Communicator>& communicator : communicators) {
    std::thread([pending, owned = std::move(communicator)]() mutable {
      if (owned != nullptr) owned->Abort();
      owned.reset();
      const std::lock_guard<std::mutex> lock(pending->mutex);
      --pending->count;
      pending->changed.notify_all();
    }).detach();
  }
  std::unique_lock<std::mutex> lock(pending->mutex);
  if (WaitFor(pending->changed, lock, wait, [&pending] { return pending->count == 0; })) {
    return OkStatus();
  }
  return DeadlineExceededError(absl::StrCat(pending->count, " of ", all,
                                            " communicators did not end within ",
                                            absl::FormatDuration(wait)));
}

}  // namespace cadre::nccl
