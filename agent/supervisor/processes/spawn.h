// Starts one process: prepares everything that it needs, forks into the cgroup, and returns a pidfd
// and the pipe that reports the result of exec. Never waits for the child. Supervisor's thread
// only.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_SPAWN_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_SPAWN_H_

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/supervisor/frames.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

// The value of CADRE_PROGRESS_FD in every worker.
inline constexpr int kProgressFd = 3;
// The value of CADRE_STANDS_BY in standby processes.
inline constexpr int kStandbyFd = 4;

struct SpawnRequest {
  const StartFrame* start = nullptr;
  std::string marker;  // value of CADRE_SUPERVISED_BY
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int progress_fd = -1;
  int standby_fd = -1;  // -1: not a standby
  int cgroup_fd = -1;   // directory of the worker's cgroup; -1: none
  rlimit descriptors = {};
};

struct Spawned {
  pid_t pid = 0;
  ScopedFd pidfd;
  ScopedFd status;  // EOF: exec succeeded; else one ChildFailure. Non-blocking.
  bool in_cgroup = false;
  // Set if no process could be made.
  std::string failed_step;
  int error = 0;
};

Spawned Spawn(const SpawnRequest& request);

// The steps of a new process between fork and exec.
enum class ChildStep : int32_t {
  kSession = 0,
  kParentDeath,
  kCgroup,
  kDescriptors,
  kLimits,
  kCpus,
  kWorkingDir,
  kExec,
};
// For example "exec" or "chdir".
const char* NameOf(ChildStep step);

// What the child writes to `status_fd` when a step fails; on success exec closes it unwritten.
struct ChildFailure {
  ChildStep step;
  int32_t error;
};

// The exit status if exec is not reached, by the shells' convention.
int ExitCodeOf(int error);

// The process's environment: the marker first, the given variables, CADRE_PROGRESS_FD, and
// CADRE_STANDS_BY for a standby.
std::vector<std::string> WorkerEnvironment(const StartFrame& start, const std::string& marker);

// The paths that execvpe would try for `program`, with PATH from `environment`.
std::vector<std::string> ProgramCandidates(const std::string& program,
                                           const std::vector<std::string>& environment);

// Far above any machine; a larger number in a StartFrame is rejected before anything is allocated.
inline constexpr uint32_t kMaxCpus = 65536;

// A set of CPUs in the kernel's format. Pure.
class CpuMask {
 public:
  // Returns nullopt if a number is too large.
  static std::optional<CpuMask> Of(const std::vector<uint32_t>& cpus);

  // Returns nullptr if the set is empty.
  const cpu_set_t* set() const {
    return words_.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(words_.data());
  }
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_SPAWN_H_
