#include "agent/workers/run_logs.h"

#include <stdlib.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/run_files.h"
#include "base/exit_codes.h"
#include "base/log_paths.h"
#include "base/text.h"

namespace cadre::agent {

RunLogs::RunLogs(std::string log_dir, std::string job)
    : log_dir_(std::move(log_dir)),
      job_(std::move(job)),
      earlier_verdict_(VerdictMark(log_dir_, job_)) {}

void RunLogs::SetGeneration(std::string run, uint64_t generation) {
  run_ = std::move(run);
  generation_ = generation;
}

std::string RunLogs::RunPath() const { return kept() ? RunDirectory(log_dir_, job_, run_) : ""; }

std::string RunLogs::GenerationPath() const {
  return kept() ? absl::StrCat(RunPath(), "/", GenerationSubdirectory(generation_)) : "";
}

std::string RunLogs::RankPath(uint32_t rank, absl::string_view file) const {
  if (!kept()) return "";
  return absl::StrCat(RankDirectory(RunPath(), generation_, rank), "/", file);
}

std::vector<std::string> RunLogs::UnlinkEarlierRuns() const {
  if (!kept()) return {};
  std::vector<std::string> warnings;
  UnlinkOtherRuns(RunPath());
  // A run that continues under another launcher has a verdict from before.
  for (const std::string& directory : {RunDirectory(log_dir_, job_, ""), RunPath()}) {
    const absl::Status status = RemoveVerdict(directory);
    if (!status.ok()) warnings.emplace_back(status.message());
  }
  return warnings;
}

absl::Status RunLogs::LinkGeneration() const {
  if (!kept()) return absl::OkStatus();
  return LinkToRun(RunPath(), GenerationSubdirectory(generation_));
}

void RunLogs::LinkRank(uint32_t rank, const std::string& directory) const {
  if (!kept()) return;
  // Without the link the files can still be found where they were.
  LinkDirectory(RankDirectory(RunPath(), generation_, rank), directory).IgnoreError();
}

namespace {

struct ExitFiles {
  std::string log_dir;  // empty: no verdict is written
  std::string job;
  std::string run;  // as in v1::JobStatus; empty: no server has sent it
  std::string node;
  // VerdictMark() of the file that existed before this run.
  std::string earlier_verdict;
};

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

absl::Status SaveVerdict(const ExitFiles& files, const Exit& exit) {
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

absl::Status SaveErrorFile(const ExitFiles& files, const Exit& exit) {
  const char* parents_file = getenv("TORCHELASTIC_ERROR_FILE");
  const v1::Failure& cause = exit.verdict.root_cause();
  if (parents_file == nullptr || cause.exit().error_json().empty() || cause.node() != files.node) {
    return absl::OkStatus();
  }
  return WriteFileAnywhere(parents_file, WithErrorCode(cause.exit().error_json(), cause.exit()));
}

}  // namespace

std::vector<std::string> RunLogs::WriteExitFiles(const std::string& node, const Exit& exit) const {
  const ExitFiles files = {log_dir_, job_, run_, node, earlier_verdict_};
  std::vector<std::string> warnings;
  const absl::Status verdict = SaveVerdict(files, exit), error_file = SaveErrorFile(files, exit);
  if (!verdict.ok()) {
    warnings.push_back(absl::StrCat("the verdict cannot be saved: ", verdict.message()));
  }
  if (!error_file.ok()) warnings.emplace_back(error_file.message());
  return warnings;
}

}  // namespace cadre::agent
