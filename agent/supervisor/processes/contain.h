// Holds a group to what it was given, by its cgroup (frames.h, Containment). Supervisor's thread
// only.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CONTAIN_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CONTAIN_H_

#include <string>
#include <vector>

#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// Before the reason.
inline constexpr char kNoMemoryLimit[] = "jobs are not held to memory_per_worker: ";
inline constexpr char kNoProcessLimit[] = "the processes of jobs are not bounded: ";

// `path`: the cgroup, empty yet. What cannot be done here, a line each, and the rest is done.
std::vector<std::string> ContainCgroup(const std::string& path, const Containment& containment);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CONTAIN_H_
