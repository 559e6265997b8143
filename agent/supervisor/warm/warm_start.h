// Starts workers of Python programs: forked from the program's template if one is ready, else
// plainly. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_WARM_START_H_
#define CADRE_AGENT_SUPERVISOR_WARM_WARM_START_H_

#include <cstdint>

#include "agent/supervisor/frames.h"
#include "agent/supervisor/groups.h"
#include "agent/supervisor/output.h"
#include "base/time.h"

namespace cadre::supervisor {

// On return the group has a process, waits for one, or its end has been reported.
void StartPythonGroup(State& state, uint64_t serial, const StartFrame& start,
                      OutputChannels channels, Group& group, MonoTime now);

// Does the same for a program that is not Python: the interpreters that it starts get the hook,
// which dumps their stacks.
void StartWithHook(State& state, uint64_t serial, const StartFrame& start, OutputChannels channels,
                   Group& group);

// Releases the workers that templates have forked, and plainly starts those that were not forked.
void AdvanceWarmStarts(State& state, MonoTime now);
MonoTime NextWarmStartDeadline(const State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_WARM_START_H_
