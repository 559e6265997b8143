// One of this node's workers as its agent knows it. Plain values.
#ifndef CADRE_AGENT_WORKERS_NODE_WORKER_H_
#define CADRE_AGENT_WORKERS_NODE_WORKER_H_

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/supervisor/frames.h"

namespace cadre::agent {

// What stays as it was when the process was started, also where it goes on in later generations.
struct WorkerFiles {
  std::vector<std::string> logs;  // its streams in files; the first that is not empty is quoted
  std::vector<std::string> silent_logs;  // of these, those that do not come as frames too
  std::string progress_file;
  std::string directory;  // of its log files, and of its error file
};

inline WorkerFiles FilesOf(const supervisor::StartFrame& frame, std::string progress_file) {
  WorkerFiles files;
  files.logs = {frame.stderr_path, frame.stdout_path};
  if (!frame.forward_stdout) files.silent_logs.push_back(frame.stdout_path);
  if (!frame.forward_stderr) files.silent_logs.push_back(frame.stderr_path);
  files.progress_file = std::move(progress_file);
  files.directory = std::filesystem::path(frame.error_file).parent_path().string();
  return files;
}

struct NodeWorker {
  uint32_t rank = 0;
  pid_t pid = 0;  // 0: it does not run
  WorkerFiles files;
};

using NodeWorkersByRank = std::map<uint32_t, NodeWorker>;  // local rank

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_NODE_WORKER_H_
