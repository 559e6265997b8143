// Limits on what a job's cgroup may use (frames.h, Containment): memory, processes and devices.
// They need cgroup v2 controllers, and for devices a BPF program. Supervisor's thread only, except
// for FindUnsupportedLimits.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_LIMITS_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_LIMITS_H_

#include <linux/bpf.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// Why this machine does not support a limit; empty: an agent that runs as root can set it.
struct UnsupportedLimits {
  std::string devices;
  std::string memory;
  std::string pids;
};

// For messages to the user; the answer is for this process. Any thread.
UnsupportedLimits FindUnsupportedLimits();

// Prefixes of the returned lines.
inline constexpr char kNoMemoryLimit[] = "memory_per_worker is not enforced: ";
inline constexpr char kNoProcessLimit[] = "the number of processes of jobs is not limited: ";

// `path`: the cgroup, which is still empty. Returns a line for each limit that cannot be set; the
// others are set all the same.
std::vector<std::string> LimitCgroup(const std::string& path, const Containment& containment);

// Compiles device rules to a program of type BPF_PROG_TYPE_CGROUP_DEVICE, which the kernel runs
// whenever a process of a cgroup opens a device or makes a device node. It returns 1 if access is
// allowed, else 0, which the process sees as EPERM. Pure.
std::vector<bpf_insn> DeviceProgram(const std::vector<DeviceRule>& rules);

// The kernel's files about its controllers.
struct ControllerFiles {
  std::string kernel;      // /proc/cgroups
  std::string everywhere;  // cgroup.controllers of cgroup v2's root
  std::string here;        // that of the cgroup `place`
  std::string place;
};

ControllerFiles ReadControllerFiles();

// Why cgroups made in `place` cannot use the controller; empty: they can. Pure.
std::string WhyControllerUnusable(absl::string_view controller, const ControllerFiles& files);

// Enables the controller for the children of `cgroup`. Returns an empty string, or why it fails.
std::string EnableForChildren(absl::string_view controller, const std::string& cgroup);

// Enables the controller for `root`, which is a child of `parent`, and for the children of `root`.
// A cgroup with enabled controllers can hold no processes itself: if only this process and its
// parent are in `parent`, they move to a cgroup beside `root`. Returns an empty string if it is
// enabled, else why not.
std::string EnableController(absl::string_view controller, const std::string& parent,
                             const std::string& root);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_LIMITS_H_
