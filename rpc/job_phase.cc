#include "rpc/job_phase.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace cadre::rpc {
namespace {

// An agent looks where its workers are after the same time (agent/core/hang_watch.h).
constexpr int64_t kUsualSteps = 3;
constexpr int64_t kQuietUs = 5000000;

}  // namespace

std::string PhaseName(v1::JobPhase phase) {
  // It has that name because FailureCause has a CANCELLED, and the values of all enums of a package
  // share its namespace.
  if (phase == v1::CANCELLED_PHASE) return "cancelled";
  if (phase == v1::JOB_PHASE_UNSPECIFIED) return "starting";
  return absl::AsciiStrToLower(v1::JobPhase_Name(phase));
}

bool StandsStill(const v1::JobProgress& progress) {
  return progress.quiet_us() >= std::max(kQuietUs, kUsualSteps * progress.usual_us());
}

std::string QuietText(const v1::JobProgress& progress) {
  if (!StandsStill(progress)) return "";
  return absl::StrCat("no step for ", ShortDuration(absl::Seconds(progress.quiet_us() / 1000000)));
}

}  // namespace cadre::rpc
