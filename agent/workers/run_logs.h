// The log directories of one job on this node: those of the current run and generation, and the
// links by which users find a job's newest. Blocks on the file system; one thread.
#ifndef CADRE_AGENT_WORKERS_RUN_LOGS_H_
#define CADRE_AGENT_WORKERS_RUN_LOGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/core/agent_core.h"

namespace cadre::agent {

class RunLogs {
 public:
  // `log_dir`: for all jobs; empty: no logs are kept.
  RunLogs(std::string log_dir, std::string job);

  bool kept() const { return !log_dir_.empty(); }
  // As in v1::JobStatus; empty before the first SetGeneration.
  const std::string& run() const { return run_; }

  // Sets the run and generation for the paths below.
  void SetGeneration(std::string run, uint64_t generation);
  // Makes this run's files the job's newest by removing the links to earlier runs. Returns a line
  // for each that could not be removed.
  std::vector<std::string> UnlinkEarlierRuns() const;
  // Makes this generation the job's newest.
  absl::Status LinkGeneration() const;
  // Links the rank's path to `directory`, where its process, started by an earlier generation,
  // writes.
  void LinkRank(uint32_t rank, const std::string& directory) const;

  // Paths in this run and generation; empty if no logs are kept.
  std::string RunPath() const;
  std::string GenerationPath() const;
  std::string RankPath(uint32_t rank, absl::string_view file) const;

  // Called when the job is over: writes the verdict, and the error file of the program that started
  // the launcher. The verdict is the server's or, without one, what this node knows; in that case a
  // verdict that another node has written meanwhile is better and is kept. Returns a line for each
  // file that could not be written.
  std::vector<std::string> WriteExitFiles(const std::string& node, const Exit& exit) const;

 private:
  const std::string log_dir_;
  const std::string job_;
  const std::string earlier_verdict_;  // the mark of the one that existed at the start
  std::string run_;
  uint64_t generation_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_RUN_LOGS_H_
