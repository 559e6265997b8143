#include "agent/supervisor/processes/contain.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/device_filter.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {
namespace {

// What the kernel's documentation (cgroup-v2, "Model of Delegation") gives away: these allow to
// make cgroups below and to move processes there, but neither out of it nor its own limits.
constexpr const char* kDelegated[] = {"", "/cgroup.procs", "/cgroup.threads",
                                      "/cgroup.subtree_control"};

// Of the cgroups that the user may make below: more than any launcher or container engine needs,
// and few enough for whoever removes them.
constexpr char kMaxDepth[] = "32";
constexpr char kMaxCgroups[] = "4096";

void Limit(const std::string& path, const Containment& containment,
           std::vector<std::string>* undone) {
  WriteKernelFile(path + "/cgroup.max.depth", kMaxDepth);
  WriteKernelFile(path + "/cgroup.max.descendants", kMaxCgroups);
  if (containment.max_pids != 0 &&
      !WriteKernelFile(path + "/pids.max", absl::StrCat(containment.max_pids))) {
    undone->push_back(absl::StrCat(kNoProcessLimit, strerror(errno)));
  }
  if (containment.memory_bytes == 0) return;
  if (!WriteKernelFile(path + "/memory.max", absl::StrCat(containment.memory_bytes))) {
    undone->push_back(absl::StrCat(kNoMemoryLimit, strerror(errno)));
  }
  // Without swap the kernel may not have the file.
  if (!WriteKernelFile(path + "/memory.swap.max", "0") && errno != ENOENT) {
    undone->push_back(absl::StrCat("jobs may swap: ", strerror(errno)));
  }
}

}  // namespace

std::vector<std::string> ContainCgroup(const std::string& path, const Containment& containment) {
  std::vector<std::string> undone;
  const ScopedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Limit(path, containment, &undone);
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
