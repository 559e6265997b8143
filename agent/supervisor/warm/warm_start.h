// Starts workers of Python programs: from the program's template where one is ready, else plainly.
// Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_WARM_START_H_
#define CADRE_AGENT_SUPERVISOR_WARM_WARM_START_H_

#include <cstdint>

#include "agent/supervisor/frames.h"
#include "agent/supervisor/output/plumbing.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre::supervisor {

// The group has a process, is on its way to one, or its end is reported.
void StartPythonGroup(State& state, uint64_t serial, const StartFrame& start, Plumbing plumbing,
                      Group& group, MonoTime now);

// The same of a program that is not Python's: interpreters that it starts get the hook, and answer
// with their stacks.
void StartWithHook(State& state, uint64_t serial, const StartFrame& start, Plumbing plumbing,
                   Group& group);

// Lets go what templates have forked, and starts plainly what they have not.
void AdvanceWarmStarts(State& state, MonoTime now);
MonoTime NextWarmStartDeadline(const State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_WARM_START_H_
