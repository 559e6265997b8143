// Rules on devices as a program that the kernel runs whenever a process of a cgroup opens a device
// or makes a node of one. Pure.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_DEVICE_PROGRAM_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_DEVICE_PROGRAM_H_

#include <linux/bpf.h>

#include <vector>

#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// Of the type BPF_PROG_TYPE_CGROUP_DEVICE. It gives 1 where access is allowed, else 0, which the
// process sees as EPERM.
std::vector<bpf_insn> DeviceProgram(const std::vector<DeviceRule>& rules);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_DEVICE_PROGRAM_H_
