// What a new worker's process is connected to: its log files, and pipes for what it says.
// Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_PLUMBING_H_
#define CADRE_AGENT_SUPERVISOR_PLUMBING_H_

#include <string>

#include "agent/supervisor/frames.h"
#include "agent/supervisor/stdio.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

struct Plumbing {
  ScopedFd stdout_file;
  ScopedFd stderr_file;
  WorkerPipe standard_output;
  WorkerPipe standard_error;
  WorkerPipe progress;
};

// The name of the step that failed, errno set; nullptr when all is there. Removes the error file of
// an earlier worker.
const char* LayPlumbing(const StartFrame& start, Plumbing& plumbing);

// An empty path is no file, and a full disk has none. False: errno says why.
bool OpenLog(const std::string& path, ScopedFd& file);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PLUMBING_H_
