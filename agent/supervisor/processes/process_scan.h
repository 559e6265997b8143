// Finds and kills processes through /proc, for use without cgroups. Stateless; any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_PROCESS_SCAN_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_PROCESS_SCAN_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cadre::supervisor {

// The variable in the environment of every group's process, inherited by its descendants:
// "<supervisor's id>.<serial>".
inline constexpr char kMarkerVariable[] = "CADRE_SUPERVISED_BY";

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';
  bool exiting = false;  // in or after exit(2), where it has lost its environment
};

// nullopt: no such process.
std::optional<ProcessInfo> InspectProcess(pid_t pid);

// The kernel function in which the process or thread with this /proc directory waits; empty: it
// does not wait in one, or we may not read it.
std::string KernelFunction(const std::string& directory);

// The state of a process that was killed.
struct KilledProcess {
  // It will end by itself: it waits for a processor, or is dead and waits to be reaped.
  bool will_end = false;
  // The state of the thread that waits in the kernel, or else of the process.
  char state = '?';
  std::string kernel_function;
};

// Returns nullopt if it is gone. All its threads are checked, since the first one may be dead
// before the others.
std::optional<KilledProcess> InspectKilled(pid_t pid);

// The children of this process, including those that have ended but are not reaped.
std::vector<pid_t> OwnChildren();

// The marker in the environment with which the process was started; empty if it has none, or /proc
// may not be read.
std::string ReadMarker(pid_t pid);

// Sends SIGKILL to every process for which `belongs` is true. Each is checked again once a pidfd
// pins it, so that a reused pid is never killed. Returns those that were alive; zombies do not
// count.
std::vector<pid_t> KillProcesses(const std::function<bool(const ProcessInfo&)>& belongs);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_PROCESS_SCAN_H_
