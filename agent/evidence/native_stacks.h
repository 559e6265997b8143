// The native stacks of a process, by eu-stack or gdb where one of them is installed. Stateless; any
// thread.
#ifndef CADRE_AGENT_EVIDENCE_NATIVE_STACKS_H_
#define CADRE_AGENT_EVIDENCE_NATIVE_STACKS_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "base/time.h"

namespace cadre::agent {

inline constexpr size_t kMaxStackBytes = 256 << 10;

// What the tool printed until it ended, `deadline` came or `cancelled` became true, and a line that
// says so where it is not all. The tool is killed then. Says why where there is no tool.
std::string NativeStacks(pid_t process, MonoTime deadline, const std::atomic<bool>& cancelled);

// The same by a tool that attaches to the process. Killed in the middle of that, it would leave the
// process stopped: the process goes on when this returns, unless it was stopped before.
std::string StacksBy(const std::vector<std::string>& tool, pid_t process, MonoTime deadline,
                     const std::atomic<bool>& cancelled);

// Runs any program with these arguments and returns what it prints, within the same limits. When it
// returns, the program and what it started, as far as that is in its process group, are gone and
// waited for: a killed gdb leaves a child of its own to whoever is the subreaper, and that is this
// process.
std::string OutputOfTool(const std::vector<std::string>& tool, MonoTime deadline,
                         const std::atomic<bool>& cancelled);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_NATIVE_STACKS_H_
