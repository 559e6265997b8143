#include "worker_runtime/nccl/abort_together.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace cadre {
namespace {

// Shared with threads that may live longer than the call.
struct Pending {
  absl::Mutex mutex;
  size_t count ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace

absl::Status AbortTogether(std::vector<std::unique_ptr<Communicator>> communicators,
                           absl::Duration wait) {
  const size_t all = communicators.size();
  if (all > kMaxAbortedTogether) {
    return absl::InvalidArgumentError(
        absl::StrCat(all, " communicators; ", kMaxAbortedTogether, " can be aborted together"));
  }
  auto pending = std::make_shared<Pending>();
  {
    absl::MutexLock lock(&pending->mutex);
    pending->count = all;
  }
  for (std::unique_ptr<Communicator>& communicator : communicators) {
    std::thread([pending, owned = std::move(communicator)]() mutable {
      if (owned != nullptr) owned->Abort();
      owned.reset();
      absl::MutexLock lock(&pending->mutex);
      --pending->count;
    }).detach();
  }
  const auto are_through = [&pending]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pending->mutex) {
    return pending->count == 0;
  };
  absl::MutexLock lock(&pending->mutex);
  if (pending->mutex.AwaitWithTimeout(absl::Condition(&are_through), wait)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(pending->count, " of ", all,
                                                  " communicators did not end within ",
                                                  absl::FormatDuration(wait)));
}

}  // namespace cadre
