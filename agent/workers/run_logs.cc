#include "agent/workers/run_logs.h"

#include "absl/strings/str_cat.h"
#include "agent/run_files.h"
#include "agent/workers/exit_files.h"
#include "base/log_paths.h"

namespace cadre::agent {

RunLogs::RunLogs(std::string log_dir, std::string job)
    : log_dir_(std::move(log_dir)),
      job_(std::move(job)),
      earlier_verdict_(VerdictMark(log_dir_, job_)) {}

void RunLogs::Enter(std::string run, uint64_t generation) {
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

std::vector<std::string> RunLogs::ForgetEarlierRuns() const {
  if (!kept()) return {};
  std::vector<std::string> complaints;
  UnlinkOtherRuns(RunPath());
  // One that goes on under another launcher has its own from before.
  for (const std::string& directory : {RunDirectory(log_dir_, job_, ""), RunPath()}) {
    const absl::Status status = RemoveVerdict(directory);
    if (!status.ok()) complaints.emplace_back(status.message());
  }
  return complaints;
}

absl::Status RunLogs::LinkGeneration() const {
  if (!kept()) return absl::OkStatus();
  return LinkToRun(RunPath(), GenerationSubdirectory(generation_));
}

void RunLogs::LinkRank(uint32_t rank, const std::string& directory) const {
  if (!kept()) return;
  // Without it the files are still where they were.
  LinkDirectory(RankDirectory(RunPath(), generation_, rank), directory).IgnoreError();
}

std::vector<std::string> RunLogs::LeaveExitFiles(const std::string& node, const Exit& exit) const {
  return agent::LeaveExitFiles({log_dir_, job_, run_, node, earlier_verdict_}, exit);
}

}  // namespace cadre::agent
