// Operations on one cgroup v2 directory and all below it. Stateless; used by the supervisor on its
// own tree and by the agent on the tree of a supervisor that died. Any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_FILES_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_FILES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::supervisor {

// SIGKILL to every process at and below `path`, forks under way included. False: no such cgroup.
bool KillCgroup(const std::string& path);

// The processes at and below `path`.
std::vector<pid_t> CgroupProcesses(const std::string& path);

// Removes `path` and the cgroups below it. True when nothing is left there; false while the kernel
// still holds one (EBUSY): try again later.
bool RemoveCgroup(const std::string& path);

// The names of the directories in `path`, sorted.
std::vector<std::string> Subdirectories(const std::string& path);

// A kernel file as it is now, at most 64 KiB of it; nullopt when it cannot be read.
std::optional<std::string> ReadKernelFile(const std::string& path);
// The same; "" when it cannot be read.
inline std::string KernelFileText(const std::string& path) {
  return ReadKernelFile(path).value_or("");
}

// False: it could not be written, and errno says why.
bool WriteKernelFile(const std::string& path, absl::string_view text);

// The number after `key` in a file of "key value" lines; nullopt when there is none.
std::optional<uint64_t> ValueOf(absl::string_view text, absl::string_view key);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_FILES_H_
