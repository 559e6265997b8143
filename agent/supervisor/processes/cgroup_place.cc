#include "agent/supervisor/processes/cgroup_place.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_split.h"

namespace cadre::supervisor {
namespace {

bool IsCgroup2(const char* path) {
  struct statfs fs;
  return statfs(path, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

}  // namespace

std::string CgroupMount() {
  for (const char* path : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (IsCgroup2(path)) return path;
  }
  return "";
}

std::string PathIn(absl::string_view own_cgroups, absl::string_view controller) {
  for (absl::string_view line : absl::StrSplit(own_cgroups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    return parts[2] == "/" ? "" : std::string(parts[2]);
  }
  return "";
}

}  // namespace cadre::supervisor
