#include "agent/workers/exit_files.h"

#include <stdlib.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/run_files.h"
#include "base/exit_codes.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

v1::Verdict OwnVerdict(const ExitFiles& files, const Exit& exit) {
  v1::Verdict verdict = exit.own;
  verdict.set_job(files.job);
  verdict.set_outcome(exit.status > kExitSignalBase ? v1::CANCELLED_PHASE : v1::FAILED);
  verdict.set_message(
      !exit.message.empty() ? exit.message
      : exit.status > kExitSignalBase
          ? absl::StrCat(SignalName(exit.status - kExitSignalBase), " at node ", files.node)
          : "the server gave no verdict");
  verdict.set_exit_status(exit.status);
  verdict.set_run(files.run);
  return verdict;
}

absl::Status LeaveVerdict(const ExitFiles& files, const Exit& exit) {
  if (files.log_dir.empty()) return absl::OkStatus();
  if (exit.verdict.outcome() != v1::JOB_PHASE_UNSPECIFIED) {
    return WriteVerdict(RunDirectory(files.log_dir, files.job, exit.verdict.run()), exit.verdict,
                        exit.timeline);
  }
  const std::string mark = VerdictMark(files.log_dir, files.job);
  if (!mark.empty() && mark != files.earlier_verdict) return absl::OkStatus();
  return WriteVerdict(RunDirectory(files.log_dir, files.job, files.run), OwnVerdict(files, exit),
                      {});
}

absl::Status LeaveErrorFile(const ExitFiles& files, const Exit& exit) {
  const char* parents_file = getenv("TORCHELASTIC_ERROR_FILE");
  const v1::Failure& cause = exit.verdict.root_cause();
  if (parents_file == nullptr || cause.exit().error_json().empty() || cause.node() != files.node) {
    return absl::OkStatus();
  }
  return WriteFileAnywhere(parents_file, WithErrorCode(cause.exit().error_json(), cause.exit()));
}

}  // namespace

std::vector<std::string> LeaveExitFiles(const ExitFiles& files, const Exit& exit) {
  std::vector<std::string> complaints;
  const absl::Status verdict = LeaveVerdict(files, exit), error_file = LeaveErrorFile(files, exit);
  if (!verdict.ok()) {
    complaints.push_back(absl::StrCat("the verdict is not kept: ", verdict.message()));
  }
  if (!error_file.ok()) complaints.emplace_back(error_file.message());
  return complaints;
}

}  // namespace cadre::agent
