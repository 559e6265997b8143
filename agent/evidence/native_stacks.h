// The native stacks of a process, by eu-stack or gdb if one of them is installed. Stateless; any
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

// Returns the tool's output until it ended, `deadline` passed or `cancelled` became true, in which
// case it is killed and a line notes that the output is incomplete. Without a tool, returns the
// reason.
std::string NativeStacks(pid_t process, MonoTime deadline, const std::atomic<bool>& cancelled);

// Does the same with a tool that attaches to the process. If the tool is killed while attached, it
// leaves the process stopped; so the process is continued before this returns, unless it was
// stopped before.
std::string StacksBy(const std::vector<std::string>& tool, pid_t process, MonoTime deadline,
                     const std::atomic<bool>& cancelled);

// Runs any program with these arguments and returns its output, within the same limits. When it
// returns, the program and those of its children that are in its process group have ended and were
// waited for: when gdb is killed, its own child is reparented to the subreaper, which is this
// process.
std::string OutputOfTool(const std::vector<std::string>& tool, MonoTime deadline,
                         const std::atomic<bool>& cancelled);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_NATIVE_STACKS_H_
