// Which devices the processes of a cgroup may open, by a program in the kernel. The supervisor's
// thread, or a command's.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_DEVICE_FILTER_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_DEVICE_FILTER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/supervisor/frames.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

// PERMISSION_DENIED: this process may not. Others: the kernel cannot.
absl::StatusOr<ScopedFd> LoadDeviceProgram(const std::vector<DeviceRule>& rules);

// For all processes that are, and come to be, in the cgroup and those below it, as long as it is
// there. What cgroups above it refuse stays refused.
absl::Status FilterDevices(int cgroup_fd, const std::vector<DeviceRule>& rules);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_DEVICE_FILTER_H_
