#include "agent/core/exits.h"

#include <signal.h>
#include <string.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_codes.h"

namespace cadre {
namespace {

// Longest text of an error that is passed on.
constexpr size_t kMaxErrorText = 1024;

}  // namespace

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

std::string OneLine(absl::string_view text) {
  std::string line;
  for (const char c : text) {
    if (line.size() >= kMaxErrorText) break;
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t') {
      line += ' ';
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else {
      line += c;
    }
  }
  return line;
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

}  // namespace cadre
