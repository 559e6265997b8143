// Finds and kills processes through /proc, for where there are no cgroups. Stateless; any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_PROCESS_SCAN_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_PROCESS_SCAN_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cadre::supervisor {

// In the environment of every group's process, and so of what it starts: "<supervisor's
// id>.<serial>".
inline constexpr char kMarkerVariable[] = "CADRE_SUPERVISED_BY";

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';
  bool exiting = false;  // on its way through exit(2), or through: it has lost its environment
};

// nullopt: no such process.
std::optional<ProcessInfo> InspectProcess(pid_t pid);

// The kernel function in which the process or thread waits whose directory in /proc this is; empty:
// it waits in none, or we may not know.
std::string KernelFunction(const std::string& directory);

// Where a process that was killed is.
struct KilledProcess {
  // What keeps it passes by itself: it waits for a processor, or it is dead and waits to be reaped.
  bool ends = false;
  // Of the thread that waits in the kernel, or else of the process.
  char state = '?';
  std::string kernel_function;
};

// nullopt: it is gone. All of its threads are looked at: the first one may be dead before the
// others.
std::optional<KilledProcess> InspectKilled(pid_t pid);

// The children of this process, those that have ended and are not reaped included.
std::vector<pid_t> OwnChildren();

// Its value in the environment with which the process was started; empty where there is none, or
// /proc does not let us look.
std::string ReadMarker(pid_t pid);

// SIGKILL to every process for which `belongs` is true. Each is asked about again once a pidfd
// pins it, so a pid that was reused meanwhile is never hit. Returns those it found alive; zombies
// do not count.
std::vector<pid_t> KillProcesses(const std::function<bool(const ProcessInfo&)>& belongs);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_PROCESS_SCAN_H_
