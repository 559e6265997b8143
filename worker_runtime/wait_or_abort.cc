#include "worker_runtime/wait_or_abort.h"

namespace cadre {

absl::Status WaitOrAbort(Communicator& communicator, const std::shared_ptr<Work>& work,
                         absl::Duration timeout) {
  absl::Status status = work->Wait(timeout);
  if (status.ok()) return status;
  communicator.Abort();
  work->Wait(kAbortGrace).IgnoreError();
  return status;
}

}  // namespace cadre
