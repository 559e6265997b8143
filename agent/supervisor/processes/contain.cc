#include "agent/supervisor/processes/contain.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/device_filter.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {
namespace {

// What the kernel's documentation (cgroup-v2, "Model of Delegation") gives away: these allow to
// make cgroups below and to move processes there, but neither out of it nor its own limits.
constexpr const char* kDelegated[] = {"", "/cgroup.procs", "/cgroup.threads",
                                      "/cgroup.subtree_control"};

}  // namespace

std::vector<std::string> ContainCgroup(const std::string& path, const Containment& containment) {
  std::vector<std::string> undone;
  const ScopedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const absl::Status devices = FilterDevices(directory.get(), containment.devices);
  if (!devices.ok()) {
    undone.push_back(absl::StrCat("jobs can open all GPUs: ", devices.message()));
  }
  for (const char* file : kDelegated) {
    if (chown((path + file).c_str(), containment.uid, containment.gid) == 0) continue;
    undone.push_back(absl::StrCat("jobs get no cgroup of their own: cannot give away ", path, file,
                                  ": ", strerror(errno)));
    break;
  }
  return undone;
}

}  // namespace cadre::supervisor
