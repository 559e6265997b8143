// The agent's record of one of this node's workers. Plain values.
#ifndef CADRE_AGENT_WORKERS_WORKER_RECORD_H_
#define CADRE_AGENT_WORKERS_WORKER_RECORD_H_

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/supervisor/frames.h"

namespace cadre::agent {

// Files that are fixed when the process is started, even if it continues in later generations.
struct WorkerFiles {
  std::vector<std::string> logs;         // its output files; the first non-empty one is quoted
  std::vector<std::string> silent_logs;  // those whose output does not come as frames too
  std::string progress_file;
  std::string directory;       // of its log files and its error file
  std::string standard_error;  // where that goes; empty: to no file
};

inline WorkerFiles FilesOf(const supervisor::StartFrame& frame, std::string progress_file) {
  // Without a log directory there may still be a file that the user named.
  const std::string& out = frame.stdout_path.empty() ? frame.stdout_file.path : frame.stdout_path;
  const std::string& err = frame.stderr_path.empty() ? frame.stderr_file.path : frame.stderr_path;
  WorkerFiles files;
  files.logs = {err, out};
  if (!frame.forward_stdout) files.silent_logs.push_back(out);
  if (!frame.forward_stderr) files.silent_logs.push_back(err);
  files.progress_file = std::move(progress_file);
  files.standard_error =
      frame.stderr_file.path.empty() ? frame.stderr_path : frame.stderr_file.path;
  files.directory = std::filesystem::path(frame.error_file).parent_path().string();
  return files;
}

struct NodeWorker {
  uint32_t rank = 0;
  pid_t pid = 0;  // 0: not running
  WorkerFiles files;
};

using NodeWorkersByRank = std::map<uint32_t, NodeWorker>;  // local rank

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_RECORD_H_
