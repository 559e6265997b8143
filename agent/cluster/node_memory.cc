#include "agent/cluster/node_memory.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroups.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "agent/workers/node_usage.h"
#include "rpc/node_memory.h"

namespace cadre::agent {
namespace {

constexpr uint64_t kGranule = uint64_t{256} << 20;

// Returns the lowest number in the files `name` of the cgroup `path` and of those above it. A
// container may see its own cgroup as the root, while its path is that of the host.
uint64_t LowestLimit(const std::string& mount, std::string path, const std::string& name) {
  uint64_t lowest = UINT64_MAX;
  while (true) {
    uint64_t limit = 0;
    // Without a limit, cgroup v2 has "max" there, and v1 a number that exceeds any machine's.
    const std::string text = supervisor::KernelFileText(absl::StrCat(mount, path, "/", name));
    if (absl::SimpleAtoi(text, &limit)) lowest = std::min(lowest, limit);
    if (path.empty()) return lowest;
    const size_t last = path.rfind('/');
    path.resize(last == std::string::npos ? 0 : last);
  }
}

}  // namespace

uint64_t FindNodeMemory(const std::string& root) {
  v1::NodeUsage usage;
  if (!ParseMemory(supervisor::KernelFileText(root + "/proc/meminfo"), &usage)) return 0;
  const std::string own = supervisor::KernelFileText(root + "/proc/self/cgroup");
  const std::string groups = root + "/sys/fs/cgroup";
  const uint64_t memory =
      std::min({usage.memory_total(), rpc::kMaxNodeMemory,
                LowestLimit(groups, supervisor::PathIn(own, ""), "memory.max"),
                LowestLimit(groups + "/unified", supervisor::PathIn(own, ""), "memory.max"),
                LowestLimit(groups + "/memory", supervisor::PathIn(own, "memory"),
                            "memory.limit_in_bytes")});
  return memory < kGranule ? memory : memory / kGranule * kGranule;
}

}  // namespace cadre::agent
