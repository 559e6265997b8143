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

Status CheckTimeout(const std::string& option, std::chrono::nanoseconds timeout) {
  if (timeout > std::chrono::nanoseconds(0)) return OkStatus();
  return InvalidArgumentError(option + " is " + std::to_string(timeout.count()) +
                              " ns; a timeout must be more than zero");
}

}  // namespace cadre
