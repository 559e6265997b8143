#include "agent/supervisor/processes/controllers.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/cgroup_place.h"

namespace cadre::supervisor {
namespace {

// For the agent and its supervisor. No name of a supervisor's tree.
constexpr char kHome[] = "/cadre-agent";

bool IsIn(absl::string_view controller, absl::string_view list) {
  const std::vector<absl::string_view> names =
      absl::StrSplit(list, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return std::find(names.begin(), names.end(), controller) != names.end();
}

// Empty: they have moved.
std::string MoveHome(const std::string& parent) {
  std::vector<pid_t> pids;
  const std::string processes = KernelFileText(parent + "/cgroup.procs");
  for (const absl::string_view line : absl::StrSplit(processes, '\n', absl::SkipEmpty())) {
    pid_t pid = 0;
    // One of another pid namespace is 0.
    if (!absl::SimpleAtoi(line, &pid) || (pid != getpid() && pid != getppid())) {
      return absl::StrCat("process ", line, " is in ", parent, " as well; a service has that to ",
                          "itself");
    }
    pids.push_back(pid);
  }
  const std::string home = parent + kHome;
  if (mkdir(home.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::StrCat("cannot make ", home, ": ", strerror(errno));
  }
  for (const pid_t pid : pids) {
    if (WriteKernelFile(home + "/cgroup.procs", absl::StrCat(pid))) continue;
    return absl::StrCat("cannot move process ", pid, " to ", home, ": ", strerror(errno));
  }
  return "";
}

}  // namespace

std::string PassOnFrom(absl::string_view controller, const std::string& cgroup) {
  const std::string file = cgroup + "/cgroup.subtree_control";
  if (IsIn(controller, KernelFileText(file))) return "";
  if (WriteKernelFile(file, absl::StrCat("+", controller))) return "";
  return absl::StrCat(cgroup, " does not pass on ", controller, ": ", strerror(errno));
}

ControllerFiles ReadControllerFiles() {
  ControllerFiles files;
  const std::string mount = CgroupMount();
  files.kernel = KernelFileText("/proc/cgroups");
  files.everywhere = KernelFileText(mount + "/cgroup.controllers");
  files.place = mount + PathIn(KernelFileText("/proc/self/cgroup"), "");
  files.here = KernelFileText(files.place + "/cgroup.controllers");
  return files;
}

std::string WhyWithout(absl::string_view controller, const ControllerFiles& files) {
  if (IsIn(controller, files.here)) return "";
  if (IsIn(controller, files.everywhere)) {
    return absl::StrCat(files.place, " is not given cgroup v2's ", controller,
                        " controller; start the agent as a service with Delegate=yes");
  }
  for (const absl::string_view line : absl::StrSplit(files.kernel, '\n')) {
    // Its name, its hierarchy, the number of its cgroups, and whether it is switched on.
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() != 4 || words[0] != controller) continue;
    if (words[3] == "0") {
      return absl::StrCat("the kernel's ", controller,
                          " controller is switched off; cgroup_enable=", controller,
                          " on its command line switches it on");
    }
    if (words[1] != "0") {
      return absl::StrCat("the ", controller, " controller is cgroup v1's here; ",
                          "systemd.unified_cgroup_hierarchy=1 on the kernel's command line makes "
                          "it v2's");
    }
  }
  return absl::StrCat("cgroup v2 has no ", controller, " controller here");
}

std::string PassOn(absl::string_view controller, const std::string& parent,
                   const std::string& root) {
  if (!IsIn(controller, KernelFileText(root + "/cgroup.controllers"))) {
    ControllerFiles files = ReadControllerFiles();
    files.place = parent;
    files.here = KernelFileText(parent + "/cgroup.controllers");
    const std::string without = WhyWithout(controller, files);
    if (!without.empty()) return without;
    std::string refused = PassOnFrom(controller, parent);
    // EBUSY, which the kernel gives for processes.
    if (!refused.empty() && !KernelFileText(parent + "/cgroup.procs").empty()) {
      const std::string stays = MoveHome(parent);
      if (!stays.empty()) return stays;
      refused = PassOnFrom(controller, parent);
    }
    if (!refused.empty()) return refused;
  }
  return PassOnFrom(controller, root);
}

}  // namespace cadre::supervisor
