// What a new process does between fork and exec. Async-signal-safe throughout: everything it needs
// is prepared before the fork, nothing is allocated.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CHILD_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CHILD_H_

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>

namespace cadre::supervisor {

// CADRE_PROGRESS_FD in every worker.
inline constexpr int kProgressFd = 3;
// CADRE_STANDS_BY in those that stand by.
inline constexpr int kStandbyFd = 4;

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
// "exec", "chdir", ...
const char* NameOf(ChildStep step);

// What the child writes to `status_fd` when a step fails; on success exec closes it unwritten.
struct ChildFailure {
  ChildStep step;
  int32_t error;
};

struct ChildPlan {
  pid_t parent = 0;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int progress_fd = -1;
  int standby_fd = -1;  // -1: it does not stand by
  int status_fd = -1;
  int cgroup_procs_fd = -1;  // join by writing here; -1: already in, or no cgroup
  rlimit descriptors = {};   // the limit to put back
  // SIGUSR1 is ignored until the program says otherwise: Slurm warns all processes of a step with
  // it, and one that does not expect that would die before the agent can stop it with grace.
  bool ignore_warning = false;
  // For /proc/self/oom_score_adj.
  const char* oom_score = nullptr;
  const cpu_set_t* cpus = nullptr;
  size_t cpus_size = 0;
  const char* working_dir = nullptr;      // nullptr: stay
  const char* const* programs = nullptr;  // to try in turn, ends with nullptr
  char* const* argv = nullptr;
  // {"/bin/sh", filled in by the child, argv[1]...}, for a script without #!.
  char** shell_argv = nullptr;
  char* const* environment = nullptr;
};

// Exit statuses when exec is not reached, as shells have them.
int ExitCodeOf(int error);

[[noreturn]] void RunChild(const ChildPlan& plan);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CHILD_H_
