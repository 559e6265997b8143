#include "rpc/job_phase.h"

#include "absl/strings/ascii.h"

namespace cadre::rpc {

std::string PhaseName(v1::JobPhase phase) {
  // The bare word is a cause's: values of one package have one namespace.
  if (phase == v1::CANCELLED_PHASE) return "cancelled";
  if (phase == v1::JOB_PHASE_UNSPECIFIED) return "starting";
  return absl::AsciiStrToLower(v1::JobPhase_Name(phase));
}

}  // namespace cadre::rpc
