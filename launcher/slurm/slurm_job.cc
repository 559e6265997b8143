#include "launcher/slurm/slurm_job.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/exit_codes.h"

namespace cadre::launcher {
namespace {

// Of a line "   Key=Value Other=Value"; a path to the end of its line may have spaces.
absl::string_view ValueOf(absl::string_view text, absl::string_view key, bool to_end_of_line) {
  for (size_t at = text.find(key); at != text.npos; at = text.find(key, at + 1)) {
    const absl::string_view after = text.substr(at + key.size());
    if ((at > 0 && !absl::ascii_isspace(text[at - 1])) || !absl::StartsWith(after, "=")) continue;
    const absl::string_view value = after.substr(1, after.find_first_of("\n") - 1);
    return to_end_of_line ? absl::StripTrailingAsciiWhitespace(value)
                          : value.substr(0, value.find(' '));
  }
  return "";
}

// Slurm writes these where there is nothing.
std::string Known(absl::string_view value) {
  return value == "(null)" || value == "None" ? "" : std::string(value);
}

}  // namespace

absl::StatusOr<SlurmJob> ParseSlurmJob(absl::string_view text) {
  SlurmJob job;
  const absl::string_view task = ValueOf(text, "ArrayTaskId", false);
  job.number = absl::StrCat(ValueOf(text, "JobId", false), task.empty() ? "" : "_", task);
  job.array = !std::all_of(task.begin(), task.end(), absl::ascii_isdigit) ||
              absl::StrContains(text, "\nJobId=");
  job.name = std::string(ValueOf(text, "JobName", false));
  job.state = std::string(ValueOf(text, "JobState", false));
  job.reason = Known(ValueOf(text, "Reason", false));
  job.nodes = Known(ValueOf(text, "NodeList", false));
  job.script = Known(ValueOf(text, "Command", true));
  job.standard_output = Known(ValueOf(text, "StdOut", true));
  job.standard_error = Known(ValueOf(text, "StdErr", true));
  const std::pair<absl::string_view, absl::string_view> exit =
      absl::StrSplit(ValueOf(text, "ExitCode", false), absl::MaxSplits(':', 1));
  if (job.state.empty() || !absl::SimpleAtoi(exit.first, &job.exit_code) ||
      !absl::SimpleAtoi(exit.second, &job.exit_signal)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected what 'scontrol show job' says of a job, got '", text.substr(0, 64), "'"));
  }
  int64_t started = 0;
  if (absl::SimpleAtoi(ValueOf(text, "StartTime", false), &started)) {
    job.started = absl::FromUnixSeconds(started);
  }
  return job;
}

bool HasEnded(const SlurmJob& job) {
  static constexpr absl::string_view kEnds[] = {
      "BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE", "FAILED",
      "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",  "TIMEOUT"};
  return std::find(std::begin(kEnds), std::end(kEnds), job.state) != std::end(kEnds);
}

int ExitStatusOf(const SlurmJob& job) {
  if (job.state == "COMPLETED") return 0;
  if (job.exit_code != 0) return job.exit_code;
  if (job.state == "TIMEOUT" || job.state == "DEADLINE") return kExitTimedOut;
  if (job.state == "CANCELLED") return kExitSignalBase + SIGTERM;
  if (job.exit_signal != 0) return kExitSignalBase + job.exit_signal;
  return job.state == "FAILED" || job.state == "OUT_OF_MEMORY" ? 1 : kExitTryLater;
}

std::string StateText(const SlurmJob& job) {
  const std::string because = job.reason.empty() ? "" : absl::StrCat(": ", job.reason);
  if (job.state == "PENDING") return absl::StrCat("is pending", because);
  if (job.state == "RUNNING") return absl::StrCat("runs on ", job.nodes);
  if (HasEnded(job)) return absl::StrCat("ended: ", job.state);
  return absl::StrCat("is ", absl::AsciiStrToLower(job.state), because);
}

}  // namespace cadre::launcher
