#include "agent/core/exits.h"

#include <errno.h>
#include <signal.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "agent/core/event.h"
#include "base/exit_codes.h"
#include "rpc/program_error.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// The machine had too little of something just then, which says nothing of the program.
bool IsShortage(int32_t error) {
  return error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOMEM;
}

}  // namespace

v1::FailureCause ClassifyExit(const v1::WorkerExit& exit, bool stopped_by_us) {
  if (exit.exec_errno() != 0) return IsShortage(exit.exec_errno()) ? v1::CRASH : v1::EXEC_FAILED;
  // A child that the kernel killed does not matter to a worker that still succeeded.
  if (exit.exit_code() == 0 && exit.signal() == 0) return v1::FAILURE_CAUSE_UNSPECIFIED;
  if (exit.out_of_memory()) return v1::OUT_OF_MEMORY;
  if (exit.signal() == SIGTERM && !stopped_by_us) return v1::PREEMPTED;
  const std::optional<rpc::ProgramError> said = rpc::FindProgramError(exit);
  if (!said.has_value()) return v1::CRASH;
  switch (said->kind) {
    case rpc::ProgramError::Kind::kCannotLoad:
      return v1::LOAD_FAILED;
    case rpc::ProgramError::Kind::kOutOfMemory:
      return v1::OUT_OF_MEMORY;
    case rpc::ProgramError::Kind::kException:
    case rpc::ProgramError::Kind::kLostPeer:
    case rpc::ProgramError::Kind::kLastLine:
      break;
  }
  return v1::CRASH;
}

v1::Failure FailureOf(const v1::WorkerExited& exited, uint32_t first_rank, const std::string& node,
                      uint64_t generation) {
  v1::Failure failure;
  failure.set_cause(exited.cause());
  failure.set_rank(first_rank + exited.local_rank());
  failure.set_local_rank(exited.local_rank());
  failure.set_node(node);
  failure.set_generation(generation);
  *failure.mutable_exit() = exited.exit();
  if (exited.has_evidence()) {
    v1::RankEvidence& evidence = *failure.add_evidence();
    evidence = exited.evidence();
    evidence.set_rank(failure.rank());
    evidence.set_local_rank(failure.local_rank());
    evidence.set_node(node);
  }
  failure.set_message(
      absl::StrCat(rpc::WorkerName(failure.rank(), failure.local_rank(), node), " ",
                   rpc::HowItEnded(exited.exit(), exited.cause(), exited.evidence()),
                   " in generation ", generation));
  return failure;
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

int StatusOfCancel(int signal) {
  return signal == kWarningSignal ? kExitTryLater : kExitSignalBase + signal;
}

}  // namespace cadre::agent
