// Waits for a collective whose buffers are on the caller's stack.
#ifndef CADRE_WAIT_OR_ABORT_H_
#define CADRE_WAIT_OR_ABORT_H_

#include <chrono>
#include <memory>
#include <string>

#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre {

// An aborted collective ends within a second; this is the upper limit of the wait for it.
constexpr std::chrono::nanoseconds kAbortGrace = std::chrono::seconds(5);

// Waits for `work`. If it fails or is late, aborts the communicator and waits until the collective
// no longer touches its buffers, so that the caller may free them. Returns the first error.
Status WaitOrAbort(Communicator& communicator, const std::shared_ptr<Work>& work,
                   std::chrono::nanoseconds timeout);

// INVALID_ARGUMENT, naming the option, if the timeout is not positive.
inline Status CheckTimeout(const std::string& option, std::chrono::nanoseconds timeout) {
  if (timeout > std::chrono::nanoseconds(0)) return OkStatus();
  return InvalidArgumentError(option + " is " + std::to_string(timeout.count()) +
                              " ns; a timeout must be more than zero");
}

}  // namespace cadre

#endif  // CADRE_WAIT_OR_ABORT_H_
