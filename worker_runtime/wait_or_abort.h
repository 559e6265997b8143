// Waiting for a collective whose buffers belong to the caller's stack frame.
#ifndef CADRE_WORKER_RUNTIME_WAIT_OR_ABORT_H_
#define CADRE_WORKER_RUNTIME_WAIT_OR_ABORT_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_runtime/communicator.h"

namespace cadre {

// An aborted collective is over within a second; nobody waits longer than this for it.
constexpr absl::Duration kAbortGrace = absl::Seconds(5);

// Waits for `work`. When it fails or is late, aborts the communicator and waits until the
// collective no longer touches its buffers, so that the caller may free them. Returns what went
// wrong first.
absl::Status WaitOrAbort(Communicator& communicator, const std::shared_ptr<Work>& work,
                         absl::Duration timeout);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_WAIT_OR_ABORT_H_
