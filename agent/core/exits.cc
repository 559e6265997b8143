#include "agent/core/exits.h"

#include <signal.h>

#include "base/exit_codes.h"

namespace cadre {
v1::FailureCause ClassifyExit(const v1::WorkerExit& exit, bool stopped_by_us) {
  if (exit.exec_errno() != 0) return v1::EXEC_FAILED;
  // A child that the kernel killed does not matter to a worker that still succeeded.
  if (exit.exit_code() == 0 && exit.signal() == 0) return v1::FAILURE_CAUSE_UNSPECIFIED;
  if (exit.out_of_memory()) return v1::OUT_OF_MEMORY;
  if (exit.signal() == SIGTERM && !stopped_by_us) return v1::PREEMPTED;
  return v1::CRASH;
}

int ExitStatusOfRejection(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return kExitTryLater;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitUnavailable;
    default:
      return kExitInternal;
  }
}

}  // namespace cadre
