// Finds and kills processes through /proc, for where there are no cgroups. Stateless; any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESS_SCAN_H_
#define CADRE_AGENT_SUPERVISOR_PROCESS_SCAN_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// In every worker's environment, and so in what it starts: "<supervisor's id>.<generation>".
inline constexpr char kMarkerVariable[] = "CADRE_SUPERVISED_BY";

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';
};

// nullopt: no such process.
std::optional<ProcessInfo> InspectProcess(pid_t pid);

// Whether the process was started with CADRE_SUPERVISED_BY=`marker`; a marker that ends in '.'
// stands for all generations. False where /proc does not let us look.
bool HasMarker(pid_t pid, absl::string_view marker);

// SIGKILL to every process for which `belongs` is true. Each is asked about again once a pidfd
// pins it, so a pid that was reused meanwhile is never hit. Returns those it found alive; zombies
// do not count.
std::vector<pid_t> KillProcesses(const std::function<bool(const ProcessInfo&)>& belongs);

}  // namespace cadre

#endif  // CADRE_AGENT_SUPERVISOR_PROCESS_SCAN_H_
