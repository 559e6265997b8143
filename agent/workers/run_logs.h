// The log directories of one job on this node: those of the run and generation that are under way,
// and the names under which people find the newest of a job. Blocks on the file system; one thread.
#ifndef CADRE_AGENT_WORKERS_RUN_LOGS_H_
#define CADRE_AGENT_WORKERS_RUN_LOGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/core/command.h"

namespace cadre::agent {

class RunLogs {
 public:
  // `log_dir`: of all jobs; empty: nothing is kept.
  RunLogs(std::string log_dir, std::string job);

  bool kept() const { return !log_dir_.empty(); }
  // As v1::JobStatus has it; empty before the first Enter.
  const std::string& run() const { return run_; }

  // From now on workers of this run and generation write.
  void Enter(std::string run, uint64_t generation);
  // This run's files are to be the job's newest: the names that lead to those of earlier runs go.
  // Returns a line for each that could not be removed.
  std::vector<std::string> ForgetEarlierRuns() const;
  // This generation is to be the job's newest.
  absl::Status LinkGeneration() const;
  // The rank's process was started by an earlier generation, and writes in `directory`.
  void LinkRank(uint32_t rank, const std::string& directory) const;

  // Paths in this run and generation; empty where nothing is kept.
  std::string RunPath() const;
  std::string GenerationPath() const;
  std::string RankPath(uint32_t rank, absl::string_view file) const;

  // As agent/workers/exit_files.h has it.
  std::vector<std::string> LeaveExitFiles(const std::string& node, const Exit& exit) const;

 private:
  const std::string log_dir_;
  const std::string job_;
  const std::string earlier_verdict_;  // the mark of the one that was there at the beginning
  std::string run_;
  uint64_t generation_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_RUN_LOGS_H_
