#include "rpc/job_phase.h"

#include "absl/strings/ascii.h"

namespace cadre::rpc {

std::string PhaseName(v1::JobPhase phase) {
  // It has that name because FailureCause has a CANCELLED, and the values of all enums of a package
  // share its namespace.
  if (phase == v1::CANCELLED_PHASE) return "cancelled";
  if (phase == v1::JOB_PHASE_UNSPECIFIED) return "starting";
  return absl::AsciiStrToLower(v1::JobPhase_Name(phase));
}

}  // namespace cadre::rpc
