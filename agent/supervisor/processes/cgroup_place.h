// Where a process is in the machine's cgroups.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_PLACE_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_PLACE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::supervisor {

// Where cgroup v2 is mounted: alone, or beside v1 (hybrid). Empty: not at all.
std::string CgroupMount();

// The path in the hierarchy whose line in a /proc/PID/cgroup has `controller`; "" is cgroup v2.
// Pure; empty for its root.
std::string PathIn(absl::string_view cgroups, absl::string_view controller);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_PLACE_H_
