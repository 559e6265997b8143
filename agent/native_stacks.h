// The native stacks of a process, by eu-stack or gdb where one of them is installed. Stateless; any
// thread.
#ifndef CADRE_AGENT_NATIVE_STACKS_H_
#define CADRE_AGENT_NATIVE_STACKS_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>

#include "base/time.h"

namespace cadre {

inline constexpr size_t kMaxStackBytes = 256 << 10;

// What the tool printed until it ended, `deadline` came or `cancelled` became true, and a line that
// says so where it is not all. The tool is killed then. Says why where there is no tool.
std::string NativeStacks(pid_t process, MonoTime deadline, const std::atomic<bool>& cancelled);

}  // namespace cadre

#endif  // CADRE_AGENT_NATIVE_STACKS_H_
