// Reads and writes the small files of /proc and of cgroups. Stateless; any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_KERNEL_FILES_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_KERNEL_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::supervisor {

// The current content of a kernel file, at most 64 KiB; nullopt if it cannot be read.
std::optional<std::string> ReadKernelFile(const std::string& path);
// The same; "" if it cannot be read.
inline std::string KernelFileText(const std::string& path) {
  return ReadKernelFile(path).value_or("");
}

// Returns false and sets errno if it cannot be written.
bool WriteKernelFile(const std::string& path, absl::string_view text);

// The number after `key` in a file of "key value" lines; nullopt if there is none.
std::optional<uint64_t> ValueOf(absl::string_view text, absl::string_view key);

// The names of the directories in `path`, sorted.
std::vector<std::string> Subdirectories(const std::string& path);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_KERNEL_FILES_H_
