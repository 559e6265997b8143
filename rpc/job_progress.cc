#include "rpc/job_progress.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace cadre::rpc {
namespace {

// An agent checks where its workers are after the same time (agent/core/hang_watch.h).
constexpr int64_t kUsualSteps = 3;
constexpr int64_t kQuietUs = 5000000;

}  // namespace

std::string PhaseName(v1::JobPhase phase) {
  // The enumerator is CANCELLED_PHASE because FailureCause has a CANCELLED, and all enums of a
  // package share its namespace.
  if (phase == v1::CANCELLED_PHASE) return "cancelled";
  if (phase == v1::JOB_PHASE_UNSPECIFIED) return "starting";
  return absl::AsciiStrToLower(v1::JobPhase_Name(phase));
}

bool IsStalled(const v1::JobProgress& progress) {
  return progress.quiet_us() >= std::max(kQuietUs, kUsualSteps * progress.usual_us());
}

std::string StallText(const v1::JobProgress& progress) {
  if (!IsStalled(progress)) return "";
  return absl::StrCat("no step for ", ShortDuration(absl::Seconds(progress.quiet_us() / 1000000)));
}

bool IsFigureName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxFigureName || !absl::ascii_isalpha(name[0])) return false;
  for (const absl::string_view taken : {"step", "total", "samples_per_second", "loss"}) {
    if (name == taken) return false;
  }
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '/';
  });
}

bool SetFigure(absl::string_view name, double value, Figures* figures) {
  for (v1::Figure& figure : *figures) {
    if (figure.name() != name) continue;
    figure.set_value(value);
    return true;
  }
  if (figures->size() >= kMaxFigures || !IsFigureName(name)) return false;
  v1::Figure* added = figures->Add();
  added->set_name(std::string(name));
  added->set_value(value);
  return true;
}

Figures CheckedFigures(const Figures& figures) {
  Figures checked;
  for (const v1::Figure& figure : figures) SetFigure(figure.name(), figure.value(), &checked);
  return checked;
}

}  // namespace cadre::rpc
