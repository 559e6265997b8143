#include "rpc/lost_peer.h"

#include <initializer_list>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "rpc/program_error.h"

namespace cadre::rpc {

bool LostPeer(const v1::WorkerExit& exit) {
  const std::optional<ProgramError> error = FindProgramError(exit);
  return error.has_value() && error->kind == ProgramError::Kind::kLostPeer;
}

bool PeerWaitTimedOut(const v1::WorkerExit& exit) {
  const std::optional<ProgramError> error = FindProgramError(exit);
  return error.has_value() && error->kind == ProgramError::Kind::kLostPeer && error->timed_out;
}

namespace {

bool HasAny(absl::string_view line, std::initializer_list<absl::string_view> words) {
  for (const absl::string_view one : words) {
    if (absl::StrContains(line, one)) return true;
  }
  return false;
}

// All comparisons are with lines in lower case, because libraries and their versions differ in
// case.

// Gloo's errors name its source file; PyTorch's part of it writes "Gloo", or names the call in
// which ranks are compared: "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms".
bool OfGloo(absl::string_view line) {
  if (HasAny(line, {"failed to pass monitoredbarrier", "timed out in monitoredbarrier"}))
    return true;
  return absl::StrContains(line, "gloo") &&
         HasAny(line, {"closed by peer", "reset by peer", "broken pipe", "connection refused",
                       "caused pair closure", "timed out", "timeout", "connectfullmesh failed"});
}

// ncclSystemError and the like are the rank's own errors, and do not count.
bool OfNccl(absl::string_view line) {
  return HasAny(line, {"remote process exited or there was a network error", "ncclremoteerror",
                       "nccl communicator was aborted", "connection closed by remote peer",
                       "watchdog caught collective operation timeout"});
}

// Errors of PyTorch's store; before PyTorch 2.1 they had no type of their own.
bool OfStore(absl::string_view line) {
  const absl::string_view type = line.substr(0, line.find(':'));
  const bool typed = absl::EndsWith(type, "distnetworkerror") ||
                     absl::EndsWith(type, "diststoreerror") ||
                     absl::EndsWith(type, "distbackenderror");
  if (typed) {
    return HasAny(line, {"connection was likely closed", "got 0 bytes", "reset by peer",
                         "broken pipe", "connection refused", "timed out", "timeout"});
  }
  for (const char* whole : {"runtimeerror: connection reset by peer", "runtimeerror: broken pipe",
                            "runtimeerror: socket timeout"}) {
    if (absl::StartsWith(line, whole)) return true;
  }
  return false;
}

// Errors of Cadre's own library: `communicator "world": rank 1 is gone (process 17)`.
bool OfCadre(absl::string_view line) {
  return absl::StrContains(line, "communicator \"") &&
         HasAny(line, {" is gone", " has left the communicator",
                       " aborted the communicator",  // the last one in older libraries
                       "deadline_exceeded", "deadlineexceedederror"});
}

}  // namespace

bool ReportsLostPeer(absl::string_view said) {
  const std::string line = absl::AsciiStrToLower(said);
  return OfGloo(line) || OfNccl(line) || OfStore(line) || OfCadre(line);
}

bool ReportsPeerTimeout(absl::string_view said) {
  const std::string line = absl::AsciiStrToLower(said);
  return ReportsLostPeer(said) && HasAny(line, {"timed out", "timeout", "monitoredbarrier",
                                                "deadline_exceeded", "deadlineexceedederror"});
}

}  // namespace cadre::rpc
