#include "cadre/wait_or_abort.h"

#include <chrono>

namespace cadre {

Status WaitOrAbort(Communicator& communicator, const std::shared_ptr<Work>& work,
                   std::chrono::nanoseconds timeout) {
  Status status = work->Wait(timeout);
  if (status.ok()) return status;
  communicator.Abort();
  work->Wait(kAbortGrace).IgnoreError();
  return status;
}

}  // namespace cadre
