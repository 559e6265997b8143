// Starts one worker: prepares all that its process needs, forks into the cgroup, and gives back a
// pidfd and the pipe that tells how exec went. Never waits for the child. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_SPAWN_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_SPAWN_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "agent/supervisor/frames.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

struct SpawnRequest {
  const StartFrame* start = nullptr;
  std::string marker;  // value of CADRE_SUPERVISED_BY
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int progress_fd = -1;
  int standby_fd = -1;  // -1: it does not stand by
  int cgroup_fd = -1;   // directory of the worker's cgroup; -1: none
  rlimit descriptors = {};
};

struct Spawned {
  pid_t pid = 0;
  ScopedFd pidfd;
  ScopedFd status;  // EOF: exec succeeded; else one ChildFailure. Non-blocking.
  bool in_cgroup = false;
  // When no process could be made.
  std::string failed_step;
  int error = 0;
};

Spawned Spawn(const SpawnRequest& request);

// The process's environment: the given one with CADRE_PROGRESS_FD, CADRE_STANDS_BY if it does, and
// the marker, which is first.
std::vector<std::string> WorkerEnvironment(const StartFrame& start, const std::string& marker);

// What execvpe would try for `program`, with PATH as it is in `environment`.
std::vector<std::string> ProgramCandidates(const std::string& program,
                                           const std::vector<std::string>& environment);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_SPAWN_H_
